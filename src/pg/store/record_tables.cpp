#include "pg/store/record_tables.hpp"

#include "pg/server/catalog.hpp"
#include "pg/server/owner.hpp"
#include "pg/store/scope.hpp"
#include "pg/store/table.hpp"

namespace idem::pg {
namespace {

using Fault = RecordTableFault;

// ---- The transaction's choice -------------------------------------------------------------------

// The choices of the transaction and of its subtransactions that are open, the newest first.
struct Choice {
    Oid table;
    SubTransactionId made_in;
    Choice* older;
};
constinit Choice* newest_choice = nullptr;  // in TopTransactionContext

// ---- What a record table must be ----------------------------------------------------------------

// A table that was checked. Another one may take its place, which costs a check only.
struct Checked {
    Oid table;
    std::uint64_t as_of;      // changes of the table, or of idem.record
    std::uint64_t as_of_all;  // changes of any relation
};
constinit std::array<Checked, known_tables> checked{};

Checked state_of(Oid table) {
    return {table, changes_of(table) + changes_of(table_oid(Table::record)),
            changes_of(InvalidOid)};
}

// A partition may have changed since: its parents count as well.
bool is_checked(Oid table, bool is_partition = false) {
    const Checked& known = checked[table % checked.size()];
    const Checked now = state_of(table);
    return known.table == table && known.as_of == now.as_of &&
           (!is_partition || known.as_of_all == now.as_of_all);
}

Fault check(Relation relation) {
    const Oid table = RelationGetRelid(relation);
    const Oid own = table_oid(Table::record);
    if (table == own || is_checked(table, relation->rd_rel->relispartition)) return {};
    const Checked before = state_of(table);
    Relation common = table_open(own, AccessShareLock);
    const Fault fault = fault_of(relation, common);
    table_close(common, AccessShareLock);
    if (!fault) checked[table % checked.size()] = before;
    return fault;
}

// ---- All record tables --------------------------------------------------------------------------

// A partitioned table may have such a column, too, but is left out: callers lock the tables in the
// order of their OIDs, often a partition first, and ALTER TABLE ... DETACH PARTITION locks them the
// other way round.
List* tables_with(Oid type) {
    List* tables = NIL;
    each_dependency(DependReferenceIndexId, Anum_pg_depend_refclassid, TypeRelationId, type,
                    [&tables](const FormData_pg_depend& of) {
                        if (of.classid == RelationRelationId && of.objsubid > 0 &&
                            get_rel_relkind(of.objid) == RELKIND_RELATION)
                            tables = list_append_unique_oid(tables, of.objid);
                    });
    return tables;
}

// A table that was checked may have changed since: it is checked again once it is locked.
Fault fault_before_lock(Oid table) {
    const bool known = table == table_oid(Table::record) || is_checked(table);
    return known && OidIsValid(table) ? Fault{} : outward_fault(table);
}

[[noreturn]] void refuse_table(Oid table, const Fault& fault) {
    const bool gone = fault.kind == Fault::gone;
    const bool privilege = fault.kind == Fault::owner || fault.kind == Fault::privileges;
    const char* name = gone ? nullptr : qualified_name(table);
    ereport(ERROR,
            (errcode(gone        ? ERRCODE_UNDEFINED_TABLE
                     : privilege ? ERRCODE_INSUFFICIENT_PRIVILEGE
                                 : ERRCODE_WRONG_OBJECT_TYPE),
             gone ? errmsg("record table does not exist")
             : fault.kind == Fault::owner
                 ? errmsg("record table %s has another owner than idem.record", name)
             : privilege ? errmsg("roles other than its owner may change record table %s", name)
                         : errmsg("%s is not a record table", name),
             errdetail("%s", fault.detail), errhint("%s", hint_of(fault))));
}

// What keeps the table from being used. Without a fault, it is open.
Fault open_or_fault(Oid table, LOCKMODE mode, Relation& relation) {
    relation = nullptr;
    if (const Fault fault = fault_before_lock(table)) return fault;
    relation = try_relation_open(table, mode);
    if (relation == nullptr) return outward_fault(table);
    const Fault fault = check(relation);
    if (!fault) return {};
    relation_close(relation, mode);
    relation = nullptr;
    return fault;
}

}  // namespace

Oid normalize_table(Oid table) {
    return table == table_oid(Table::record) ? common_records : table;
}

Oid records_of(const Scope& scope) {
    if (!scope.records) return common_records;
    const Oid chosen = chosen_records();
    if (chosen == common_records)
        ereport(ERROR,
                (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                 errmsg("this transaction has chosen no record table"),
                 errdetail("The records of scope \"%s\" are in other tables than idem.record.",
                           scope.name),
                 errhint("Call idem.use_records() with the table first, in the same "
                         "transaction.")));
    return chosen;
}

void check_place(std::int32_t scope, Oid table) {
    const auto elsewhere = records_after_change(scope);
    if (elsewhere && *elsewhere != (table != common_records))
        report::serialization_failure(
            "The scope's records were put elsewhere while the call was waiting.");
}

Oid chosen_records() {
    return newest_choice == nullptr ? common_records : newest_choice->table;
}

void choose_records(Oid table) {
    const SubTransactionId here = GetCurrentSubTransactionId();
    if (newest_choice != nullptr && newest_choice->made_in == here) {
        newest_choice->table = normalize_table(table);
        return;
    }
    auto* choice = static_cast<Choice*>(MemoryContextAlloc(TopTransactionContext, sizeof(Choice)));
    *choice = {normalize_table(table), here, newest_choice};
    newest_choice = choice;
}

void forget_choices() {
    newest_choice = nullptr;
}

void undo_choice(SubTransactionId sub) {
    while (newest_choice != nullptr && newest_choice->made_in == sub)
        newest_choice = newest_choice->older;
}

// The parent's own choice, if there is one, is hidden by this one, until both are undone.
void hand_over_choice(SubTransactionId sub, SubTransactionId parent) {
    for (Choice* at = newest_choice; at != nullptr && at->made_in == sub; at = at->older)
        at->made_in = parent;
}

// The remedy for another owner would give a table away.
const char* hint_of(const RecordTableFault& fault) {
    if (fault.kind == Fault::owner)
        return "If its tenant has moved to another server, send the call there. Otherwise choose "
               "another table, or give one that idem.create_record_table() has created back to the "
               "owner of idem.record.";
    const bool is_sentence = fault.remedy[strlen(fault.remedy) - 1] == '.';
    return is_sentence ? fault.remedy : psprintf("As a superuser, execute %s.", fault.remedy);
}

bool is_marked_table(Oid table) {
    // An index of a marked column has a column of the type, too.
    if (get_rel_relkind(table) != RELKIND_RELATION) return false;
    return fault_before_lock(table).kind != Fault::unmarked;
}

Relation open_record_table(Oid table, LOCKMODE mode) {
    Relation relation;
    if (const Fault fault = open_or_fault(table, mode, relation)) refuse_table(table, fault);
    return relation;
}

Relation try_open_records(Oid table, LOCKMODE mode) {
    Relation relation;
    (void)open_or_fault(table, mode, relation);
    return relation;
}

// Taking the lock accepts invalidations, so a table that was dropped meanwhile is not opened. The
// checks pass over idem.record, whose access method others may have changed.
Relation open_records_at_once(Oid table, LOCKMODE mode) {
    if (fault_before_lock(table)) return nullptr;
    if (!ConditionalLockRelationOid(table, mode)) return nullptr;
    Relation relation = try_open_records(table, NoLock);
    if (relation != nullptr && relation->rd_rel->relam != HEAP_TABLE_AM_OID) {
        relation_close(relation, NoLock);
        relation = nullptr;
    }
    if (relation == nullptr) UnlockRelationOid(table, mode);
    return relation;
}

std::optional<RecordTableFault> fault_of_record_table(Oid table) {
    Relation relation = try_open_marked(table);
    if (relation == nullptr) return std::nullopt;
    const Fault fault = check(relation);
    relation_close(relation, AccessShareLock);
    return fault;
}

RecordTableFault owning_fault(Oid table) {
    Relation relation = try_open_records(table, AccessShareLock);
    if (relation == nullptr) return {};
    const auto trigger = untrusted_trigger(relation);
    relation_close(relation, AccessShareLock);
    return trigger ? Fault{trigger->detail, trigger->remedy} : Fault{};
}

RecordTableFault rewriting_fault(Oid table) {
    if (const Fault fault = owning_fault(table)) return fault;
    Relation relation = try_open_records(table, AccessShareLock);
    if (relation == nullptr) return {};
    const List* parents = get_partition_ancestors(table);
    const Oid caller = keeps_from_rewriting(relation);
    relation_close(relation, AccessShareLock);
    if (!OidIsValid(caller)) return {};
    const char* name = qualified_name(caller);
    return {psprintf("%s calls a function that is not built in, and the owner of the table is a "
                     "superuser.",
                     name),
            list_member_oid(parents, caller)
                ? psprintf("ALTER TABLE %s DETACH PARTITION %s",
                           qualified_name(linitial_oid(parents)), qualified_name(table))
            : OidIsValid(get_index_constraint(caller))
                ? psprintf("Drop the constraint of index %s.", name)
                : psprintf("DROP INDEX CONCURRENTLY %s", name)};
}

Relation try_open_marked(Oid table) {
    Relation relation = try_relation_open(table, AccessShareLock);
    if (relation == nullptr || (relation->rd_rel->relkind == RELKIND_RELATION &&
                                relation->rd_rel->relpersistence != RELPERSISTENCE_TEMP))
        return relation;
    relation_close(relation, AccessShareLock);
    return nullptr;
}

RecordBlock record_block(Oid table, BlockNumber block) {
    return RecordBlock{normalize_table(table)} << 32 | block;
}

List* record_tables() {
    const Oid type = digest_type();
    List* tables = OidIsValid(type) ? tables_with(type) : NIL;
    list_sort(tables, list_oid_cmp);
    return lcons_oid(table_oid(Table::record), tables);
}

}  // namespace idem::pg
