// Which table holds the record of a key.
//
// Records are in the table idem.record, unless the key's scope says that they are in others: then
// the transaction chooses the table. So they can live, move and vanish with the data that they
// protect: in a tenant's schema, a partition, or a shard that a tool moves between servers. Whether
// a choice counts is the scope's rule, so that a call that makes none, or one that another function
// of the transaction has made, cannot make a key new.
//
// The catalog leads from the type idem.key_digest to these tables, and each is checked
// (pg/store/record_table_check) when it is opened. What cannot be a record table is not even
// locked, because the OID may come from an invented token.
//
// The transaction's choice follows savepoints as SET LOCAL does. Everything here is backend-local.
#pragma once

#include "pg/store/record_table_check.hpp"

namespace idem::pg {

struct Scope;

// Stands for idem.record wherever the OID of a record table is given.
inline constexpr Oid common_records = InvalidOid;

// The OID of a record table as it is given: common_records for that of idem.record.
Oid normalize_table(Oid table);

// Where the records of the scope's keys are, for this transaction. Raises 55000 if they are in
// other tables than idem.record, and the transaction has chosen none.
Oid records_of(const Scope& scope);

// Raises 40001 if a scope has changed since the call looked it up, and its keys are not in a table
// like this one any more. For a caller that has locked the table to write, under which lock they
// stay there: alter_scope() waits for it.
void check_place(std::int32_t scope, Oid table);

// The table that this transaction has chosen for the scopes whose records are elsewhere.
Oid chosen_records();

void choose_records(Oid table);

// Whether the OID, which may be any number, is that of a table made for records, whatever has
// become of it.
bool is_marked_table(Oid table);

// Opens the table, whose OID may be any number. Raises 42P01 if there is no such table, 42809 if it
// is not a record table, and 42501 if a role other than the owner of idem.record owns it or may
// change it.
Relation open_record_table(Oid table, LOCKMODE mode);

// The same, but NULL if the table is gone or not a record table.
Relation try_open_records(Oid table, LOCKMODE mode);

// The same for a caller that reads blocks of a heap, without waiting for the lock: NULL also if
// another transaction holds it, or if the table is no heap.
Relation open_records_at_once(Oid table, LOCKMODE mode);

// All record tables of this database, and tables that look like one: idem.record first, the others
// by their OIDs; palloc'd. Any but the first may be gone, or not usable, when it is opened.
List* record_tables();

// Calls visit(relation) for each of these that is an ordinary table, whatever is wrong with it: its
// records would count again once it is mended. Opened with AccessShareLock, which is released.
Relation try_open_marked(Oid table);
template <class Visit>
void for_each_marked_table(Visit visit) {
    List* tables = record_tables();
    for (int i = 0; i < list_length(tables); ++i) {
        Relation relation = try_open_marked(list_nth_oid(tables, i));
        if (relation == nullptr) continue;
        visit(relation);
        relation_close(relation, AccessShareLock);
    }
    list_free(tables);
}

// What keeps an ordinary table that has a column of the type from being used as a record table.
// Nothing if the table is gone, temporary, or not an ordinary table: a view or a partitioned table
// may well have such a column.
std::optional<RecordTableFault> fault_of_record_table(Oid table);

const char* hint_of(const RecordTableFault& fault);

// What keeps the rows of a record table from being written as its owner (pg/store/triggers), and
// what besides keeps them from being rewritten (pg/server/owner).
RecordTableFault owning_fault(Oid table);
RecordTableFault rewriting_fault(Oid table);

// A block of any record table as one number. The numbers have the order of record_tables(), then
// that of the blocks. Those of idem.record are its block numbers.
using RecordBlock = std::uint64_t;
RecordBlock record_block(Oid table, BlockNumber block);

// common_records for idem.record.
constexpr Oid table_of(RecordBlock block) {
    return static_cast<Oid>(block >> 32);
}

constexpr BlockNumber number_of(RecordBlock block) {
    return static_cast<BlockNumber>(block);
}

void forget_choices();
void undo_choice(SubTransactionId sub);
void hand_over_choice(SubTransactionId sub, SubTransactionId parent);

}  // namespace idem::pg
