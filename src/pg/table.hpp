// idem's own tables: finding and scanning them, and writing rows without SPI.
//
// Without SPI there is no plan that can become stale, no row-level security to pass and no role to
// switch to. Privileges are checked before, in api. The OIDs of the tables, and the conditions of
// partial indexes, are kept per backend until the relation cache reports a change. Every index that
// the relation has at the moment of a write is maintained, whatever created it and whatever its
// access method. A deferrable constraint is checked at once.
//
// A keyed table has a 128-bit digest as its primary key. DigestScan reads that index with a dirty
// snapshot, as the check of INSERT ... ON CONFLICT does: it sees the newest committed row whatever
// the transaction's snapshot, tells which transaction is changing the row, and leaves no predicate
// locks behind.
//
// A caller that is about to write locks table and index RowExclusive until the transaction ends, so
// that index builds wait for it. Later calls of the transaction open them without a lock. A caller
// that only reads, or has yet to wait for a key lock, takes AccessShare and keeps nothing:
// otherwise a waiting claim, the holder of the key and an ALTER TABLE could wait for each other.
#pragma once

#include "core/decision.hpp"
#include "core/digest.hpp"
#include "pg/compat.hpp"
#include "pg/lock.hpp"
#include "pg/server.hpp"

namespace idem::pg {

using compat::IndexEntries;

// scope_id is a sequence.
enum class Table { record, watermark, scope, dropped_scope, secret, sweep, scope_id };
inline constexpr std::size_t table_count = 7;

// Opens the table. Raises 55000 when the extension is not installed in this database.
Relation open_table(Table table, LOCKMODE mode);

// The table's OID; raises as open_table() does.
Oid table_oid(Table table);

// The table's OID, or InvalidOid when there is none.
Oid find_table_oid(Table table);

// The relation with its schema, quoted.
const char* qualified_name(Oid relation);

// Registers a function that is called whenever the relation cache entry of the table is
// invalidated: by CacheInvalidateRelcache(), by ALTER or DROP, or by the rollback of any of these.
// One function per table. It must not raise errors or read tables.
void on_invalidation(Table table, void (*forget)());

// The same for the entries of all relations; InvalidOid stands for every one. One function in all:
// the server has few places for such functions, and other extensions in the process need theirs.
void on_each_invalidation(void (*forget)(Oid relation));

// The schema of the extension's objects; InvalidOid if there is none.
Oid own_schema();

// Registers with the relation cache.
void init_tables();

// --- Scans -------------------------------------------------------------------------------------

// Calls visit(slot) for each row of the scan and ends the scan. A visit that returns a bool ends it
// early with false.
template <class Visit>
void visit_rows(Relation relation, TableScanDesc scan, Visit visit) {
    trivial<Visit>();
    TupleTableSlot* slot = table_slot_create(relation, nullptr);
    while (table_scan_getnextslot(scan, ForwardScanDirection, slot)) {
        CHECK_FOR_INTERRUPTS();
        if constexpr (std::is_void_v<std::invoke_result_t<Visit&, TupleTableSlot*>>)
            visit(slot);
        else if (!visit(slot))
            break;
    }
    ExecDropSingleTupleTableSlot(slot);
    table_endscan(scan);
}

// Scans a whole table. Opens and closes it under AccessShareLock.
template <class Visit>
void scan_table(Table table, Snapshot snapshot, Visit visit) {
    Relation relation = open_table(table, AccessShareLock);
    visit_rows(relation, compat::begin_table_scan(relation, snapshot), visit);
    table_close(relation, AccessShareLock);
}

// Scans the rows of an open table that are committed now, under a snapshot of its own, because the
// transaction's may be older than the rows that are looked for.
template <class Visit>
void scan_committed_rows(Relation relation, Visit visit) {
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    visit_rows(relation, compat::begin_table_scan(relation, snapshot), visit);
    UnregisterSnapshot(snapshot);
}

template <class Visit>
void scan_committed(Table table, Visit visit) {
    Relation relation = open_table(table, AccessShareLock);
    scan_committed_rows(relation, visit);
    table_close(relation, AccessShareLock);
}

// Scans a number of blocks for the newest committed rows, without predicate locks. A large table is
// read through a small ring of buffers, so that the scan does not evict others' pages.
template <class Visit>
void scan_blocks(Relation relation, BlockNumber first, BlockNumber size, Visit visit) {
    TableScanDesc scan = table_beginscan_strat(relation, SnapshotSelf, 0, nullptr, true, false);
    heap_setscanlimits(scan, first, size);
    visit_rows(relation, scan, visit);
}

// --- Rows --------------------------------------------------------------------------------------

// Whether this transaction wrote the row version in the slot.
bool written_here(TupleTableSlot* slot);

// Puts the values into the slot, in place of what it holds. The table's columns beyond the values
// are NULL: those that a later release has added.
void fill_row(TupleTableSlot* slot, std::span<const Datum> values, std::span<const bool> nulls);

// Fills a new slot of the relation. Drop it with ExecDropSingleTupleTableSlot().
TupleTableSlot* new_row(Relation relation, std::span<const Datum> values,
                        std::span<const bool> nulls);

// Whether the index of this table proves that no two rows have the same digest, the first column of
// a keyed table; or, in a record table whose first column is the tenant (pg/record_tables), no two
// rows with the same digest and tenant, because a digest has one tenant. True for the primary key,
// and for an index beside it that REINDEX CONCURRENTLY is building or has yet to drop. An index
// that becomes ready after we have looked is completed by its builder, which waits for our
// transaction first.
bool is_digest_index(Relation index, Relation table);

// The condition of a partial index, of the form column = constant; the column has the type "char".
struct CharCondition {
    AttrNumber column;
    char value;
};

// The condition of an index that idem fills without the executor: a btree of columns that is not
// unique and has such a condition. Nothing for any other index, which the executor fills.
std::optional<CharCondition> partial_condition(Relation index);

// Known partial indexes that need no entry of a row. Found while the values of the row still lie in
// its slot: once the row is stored, reading one of them means taking the row apart.
using UnneededIndexes = std::array<Oid, 4>;
UnneededIndexes unneeded_indexes(Relation table, TupleTableSlot* slot);

// A valid index of this kind whose first column and condition are these; InvalidOid if there is
// none. The table must be locked.
Oid find_partial_index(Relation table, AttrNumber first, const CharCondition& condition);

// The direct entries of a row are those that need no executor: of the digest, and of partial
// indexes.
struct DirectEntries {
    bool alone = true;          // no other row has, or may come to have, the same digest
    bool more_indexes = false;  // there are other indexes to fill
};
DirectEntries add_direct_entries(Relation table, TupleTableSlot* slot,
                                 const UnneededIndexes& unneeded);
// All others. Waits and raises errors as an INSERT does.
void add_other_entries(Relation table, TupleTableSlot* slot, IndexEntries which);

template <class OnDuplicate>
bool add_index_entries(Relation table, TupleTableSlot* slot, IndexEntries which,
                       const UnneededIndexes& unneeded, OnDuplicate on_duplicate) {
    bool more_indexes = which == IndexEntries::summarizing;
    if (which == IndexEntries::all) {
        const DirectEntries made = add_direct_entries(table, slot, unneeded);
        if (!made.alone && !on_duplicate()) return false;
        more_indexes = made.more_indexes;
    }
    if (more_indexes) add_other_entries(table, slot, which);
    return true;
}

// Raises 23514 if the table is a partition and the row is not within its bounds.
void check_partition(Relation table, TupleTableSlot* slot);

// insert_row() and update_row() call on_duplicate() when another row has, or may come to have, the
// row's digest. It returns true once ours is the only row, raises an error if the other row stays,
// and may return false to give up an insertion. Tables without digests need none.
inline bool no_duplicates() {
    Assert(false);
    return true;
}

// Inserts the virtual tuple in the slot and its index entries: first those that prove its digest
// unique and those of partial indexes, without waiting; then the others, which may wait and raise
// errors as for any INSERT.
// Returns false when on_duplicate() gave up: the row then lacks the other entries, and the caller
// must delete it.
template <class OnDuplicate>
bool insert_row(Relation table, TupleTableSlot* slot, OnDuplicate on_duplicate) {
    check_partition(table, slot);
    const UnneededIndexes unneeded = unneeded_indexes(table, slot);
    table_tuple_insert(table, slot, GetCurrentCommandId(true), 0, nullptr);
    return add_index_entries(table, slot, IndexEntries::all, unneeded, on_duplicate);
}
inline void insert_row(Relation table, TupleTableSlot* slot) {
    (void)insert_row(table, slot, no_duplicates);
}

// Replaces the row at tid with the virtual tuple in the slot, with the index entries that the new
// version needs: after a heap-only update none, or only those of summarizing indexes. Any result
// but TM_Ok means that another transaction has changed the row, or is about to. on_duplicate() must
// not give up.
template <class OnDuplicate = bool (*)()>
TM_Result update_row(Relation table, ItemPointerData tid, TupleTableSlot* slot,
                     OnDuplicate on_duplicate = no_duplicates) {
    Assert(ItemPointerIsValid(&tid));
    check_partition(table, slot);
    const UnneededIndexes unneeded = unneeded_indexes(table, slot);
    IndexEntries which;
    const TM_Result result = compat::update_tuple(table, &tid, slot, which);
    if (result != TM_Ok) return result;
    [[maybe_unused]] const bool complete =
        add_index_entries(table, slot, which, unneeded, on_duplicate);
    Assert(complete);
    return result;
}

// The indexes of a table, opened once for many rows. They stay valid as long as the lock on the
// table under which they were opened.
class OpenIndexes {
  public:
    // Which entries the caller adds before add_other_entries(), by claim_digest() or by
    // add_direct_entries().
    enum class Before { digest, direct };

    OpenIndexes(Relation table, Before before);
    void close();

    // Adds the entries that prove the digest unique. Never waits. Returns false when another row
    // has, or may come to have, the same digest; the caller must then delete the row. All callers
    // fill these indexes in the same order and stop at the first that is taken, so that one of two
    // callers succeeds.
    bool claim_digest(TupleTableSlot* slot);
    // Adds all other entries of the row. Waits and raises errors as an INSERT does.
    void add_other_entries(TupleTableSlot* slot, IndexEntries which,
                           const UnneededIndexes& unneeded);

  private:
    void add_partial_entries(TupleTableSlot* slot, const UnneededIndexes& unneeded);
    void check_now(Relation index, IndexInfo* info, TupleTableSlot* slot);

    EState* estate_;
    ResultRelInfo* target_;
    // Their positions among the target's indexes. The executor does not see them.
    List* digest_indexes_ = NIL;
    List* partial_indexes_ = NIL;
};
static_assert(std::is_trivially_destructible_v<OpenIndexes>);

// --- Keyed tables ------------------------------------------------------------------------------

pg_uuid_t uuid_of(const core::Digest& digest);

// Whether the table has the tenant in its first column, before the digest (pg/record_tables).
inline bool has_tenant_column(TupleDesc table) {
    Assert(table->natts > 0);
    return memcmp(NameStr(TupleDescAttr(table, 0)->attname), "digest\0", 8) != 0;
}

// What the primary key must consist of, as in SQL.
const char* digest_columns(TupleDesc table);

// An open keyed table. An error closes it as it closes every relation.
class KeyedTable {
  public:
    using Open = Relation (*)(Oid, LOCKMODE);
    // With try_relation_open(), table() is NULL if the table is gone, and nothing is locked.
    static KeyedTable to_read(Oid table, Open open = table_open);
    static KeyedTable to_write(Oid table, Open open = table_open);
    void close() const { table_close(table_, release_); }

    Relation table() const { return table_; }
    // The primary key. Raises 55000 unless it proves that no digest occurs twice.
    Relation open_index() const;
    void close_index(Relation index) const { index_close(index, release_); }

  private:
    KeyedTable(Relation table, LOCKMODE release) : table_(table), release_(release) {}

    Relation table_;
    LOCKMODE release_;  // NoLock: opened to write, and kept locked until the transaction ends
};

// A scan for the rows of one digest after another. What it points to is allocated in the memory
// context of its first use, which must live as long as the scan.
class DigestScan {
  public:
    explicit DigestScan(const KeyedTable& table);
    DigestScan(const DigestScan&) = delete;
    DigestScan& operator=(const DigestScan&) = delete;
    void end();

    // Positions the scan before the hits of the digest; next() moves from hit to hit.
    void seek(const core::Digest& digest);
    bool next();
    // Seeks the hit that binds the key: of a row that is being replaced the old version, even if
    // the new one comes first; a row that is being inserted only if there is no other. Misses
    // nothing, whatever is replaced meanwhile. Never waits.
    bool find(const core::Digest& digest);

    // Of the current hit:
    TupleTableSlot* slot() const { return slot_; }
    core::Presence presence() const;
    bool in_snapshot() const;  // the transaction's snapshot sees it; true in READ COMMITTED
    RowWriter writer() const;  // the transaction that inserts or deletes it
    bool is_replaced() const;  // a row that is being deleted: it has a newer version

    // Waits for the writer of the current hit, as a unique index does: for the end of its
    // transaction, or of its speculative insertion. Returns false when the bound came first. The
    // variant without a bound ends with the session's lock_timeout only. Call seek() again
    // afterwards.
    bool wait(const WaitBound& bound);
    void wait();

  private:
    void restart();
    void release_pins();

    KeyedTable table_;
    Relation index_;
    IndexScanDesc scan_;
    TupleTableSlot* slot_ = nullptr;
    pg_uuid_t digest_{};
    SnapshotData dirty_;
    std::uint64_t entries_ = 0;  // a hash of the index entries that this scan has met
};
static_assert(std::is_trivially_destructible_v<DigestScan>);

}  // namespace idem::pg
