// idem's own tables: finding and scanning them, and writing rows without SPI.
//
// Without SPI there is no plan that can become stale, no row-level security to pass and no role to
// switch to. Privileges are checked before, in api. The OIDs of the tables, and what kinds of
// indexes they have, are kept per backend until the relation cache reports a change. Every index
// that the relation has at the moment of a write is maintained, whatever created it and whatever
// its access method. A deferrable constraint is checked at once.
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
#include "pg/server/compat.hpp"
#include "pg/server/subtransaction.hpp"
#include "pg/server/values.hpp"
#include "pg/server/wait.hpp"
#include "pg/store/triggers.hpp"

namespace idem::pg {

using compat::IndexEntries;

// scope_id is a sequence.
enum class Table { record, watermark, scope, dropped_scope, secret, purge_progress, scope_id };

// Opens the table. Raises 55000 when the extension is not installed in this database.
Relation open_table(Table table, LOCKMODE mode);

Oid table_oid(Table table);
// Likewise; InvalidOid when there is none.
Oid find_table_oid(Table table);

const char* qualified_name(Oid relation);

// Registers a function that is called whenever the relation cache entry of the table is
// invalidated: by CacheInvalidateRelcache(), by ALTER or DROP, or by the rollback of any of these.
// One function per table. It must not raise errors or read tables.
void on_invalidation(Table table, void (*forget)());

// A number that grows whenever the relation cache entry of the relation is invalidated; InvalidOid:
// that of any relation. What is read after it was taken is valid as long as it has not grown.
std::uint64_t changes_of(Oid relation);

// For how many tables a backend keeps what it knows of them, each at the place that its OID gives
// it. A pooled session may serve a thousand tenants with tables of their own.
inline constexpr std::size_t known_tables = 4096;

Oid own_schema();

void init_tables();

// At the end of a transaction, and when a subtransaction has rolled back: its locks are gone.
void forget_held_locks();

// --- Scans -------------------------------------------------------------------------------------

// Calls visit(slot) for each row of the scan and ends the scan. A visit that returns a bool ends it
// early with false.
template <class Visit>
void run_scan(Relation relation, TableScanDesc scan, Visit visit) {
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

template <class Visit>
void scan_rows(Relation relation, Snapshot snapshot, Visit visit) {
    run_scan(relation, table_beginscan_strat(relation, snapshot, 0, nullptr, true, true), visit);
}

// The same; opens and closes the table under AccessShareLock.
template <class Visit>
void scan_table(Table table, Snapshot snapshot, Visit visit) {
    Relation relation = open_table(table, AccessShareLock);
    scan_rows(relation, snapshot, visit);
    table_close(relation, AccessShareLock);
}

// Scans the rows of an open table that are committed now, under a snapshot of its own, because the
// transaction's may be older than the rows that are looked for.
template <class Visit>
void scan_committed_rows(Relation relation, Visit visit) {
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    scan_rows(relation, snapshot, visit);
    UnregisterSnapshot(snapshot);
}

template <class Visit>
void scan_committed(Table table, Visit visit) {
    Relation relation = open_table(table, AccessShareLock);
    scan_committed_rows(relation, visit);
    table_close(relation, AccessShareLock);
}

// Begins a search for the rows with this value in a column, equal by this function: in an index, or
// in the whole table if others have dropped that. Ends with systable_endscan().
SysScanDesc begin_search(Relation table, AttrNumber column, RegProcedure equal, Datum value,
                         Snapshot snapshot);

// Calls use(slot) for the row that is committed now and has this value. False when there is none.
template <class Use>
bool with_committed_row(Table table, AttrNumber column, RegProcedure equal, Datum value, Use use) {
    trivial<Use>();
    Relation relation = open_table(table, AccessShareLock);
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    SysScanDesc scan = begin_search(relation, column, equal, value, snapshot);
    const bool found = HeapTupleIsValid(systable_getnext(scan));
    if (found) use(scan->slot);
    systable_endscan(scan);
    UnregisterSnapshot(snapshot);
    table_close(relation, AccessShareLock);
    return found;
}

// Scans a number of blocks, as scan_rows() does. A large table is read through a small ring of
// buffers, so that the scan does not evict others' pages.
template <class Visit>
void scan_blocks(Relation relation, Snapshot snapshot, BlockNumber first, BlockNumber size,
                 Visit visit) {
    TableScanDesc scan = table_beginscan_strat(relation, snapshot, 0, nullptr, true, false);
    heap_setscanlimits(scan, first, size);
    run_scan(relation, scan, visit);
}

// --- Rows --------------------------------------------------------------------------------------

bool written_here(TupleTableSlot* slot);

// Whether the row version has been replaced: one that is deleted, or only locked, points to itself.
bool has_successor(TupleTableSlot* slot);

// Puts the values into the slot, in place of what it holds. The table's columns beyond the values
// are NULL: a later release has added them.
void fill_row(TupleTableSlot* slot, std::span<const Datum> values, std::span<const bool> nulls);

// Raises 55000 for a NULL in a column that others have made NOT NULL. The executor would refuse it,
// and code that the server compiles for a query (jit) would read other bytes there.
void check_not_null(TupleTableSlot* slot);

// Fills a new slot of the relation. Drop it with ExecDropSingleTupleTableSlot().
TupleTableSlot* new_row(Relation relation, std::span<const Datum> values,
                        std::span<const bool> nulls);

// Whether the index of this table proves that no two rows have the same digest, the first column of
// a keyed table; or, in a record table whose first column is the tenant (pg/store/record_tables),
// no two rows with the same digest and tenant, because a digest has one tenant. True for the
// primary key, and for an index beside it that REINDEX CONCURRENTLY is building or has yet to drop.
// An index that becomes ready after we have looked is completed by its builder, which waits for our
// transaction first.
bool is_digest_index(Relation index, Relation table);

// The index of unfinished operations of a record table: valid, on the scope, with the condition
// state = 'p'. InvalidOid if there is none. The table must be locked.
Oid find_unfinished_index(Relation table);

// Whether the row to be stored needs an entry in such an index, even if there is none yet: it may
// become valid while the row is stored. Asked while the row's values still lie in the slot: once it
// is stored, reading one of them means taking the row apart.
bool is_unfinished(Relation table, TupleTableSlot* slot);

// Raises 23514 if the table is a partition and the row is not within its bounds.
void check_partition(Relation table, TupleTableSlot* slot);

// The indexes of a table, opened once for any number of rows. They stay valid as long as the lock
// on the table under which they were opened. The usual table has none but the primary key and the
// index of unfinished operations, and needs no executor.
class OpenIndexes {
  public:
    explicit OpenIndexes(Relation table);
    void close();

    // Adds the entries that prove the digest unique, to the indexes after this one. Never waits.
    // Returns the index in which another row has, or may come to have, the same digest; it has our
    // entry as well, and those after it have none. NULL: all have it. All callers fill these
    // indexes in the same order and stop at the first that is taken, so that one of two succeeds.
    Relation add_digest_entries(TupleTableSlot* slot, Relation after = nullptr);
    // Adds all other entries of the row. Waits and raises errors as an INSERT does.
    void add_other_entries(TupleTableSlot* slot, IndexEntries which, bool unfinished);

  private:
    void check_now(Relation index, IndexInfo* info, TupleTableSlot* slot);

    Relation table_;
    Oid unfinished_;
    List* digest_indexes_ = NIL;
    // Of a table with other indexes; the executor does not see those of the digest.
    EState* estate_ = nullptr;
    ResultRelInfo* target_ = nullptr;
};
static_assert(std::is_trivially_destructible_v<OpenIndexes>);

template <class OnDuplicate>
bool add_index_entries(Relation table, TupleTableSlot* slot, IndexEntries which, bool unfinished,
                       OnDuplicate on_duplicate) {
    if (which == IndexEntries::none) return true;
    OpenIndexes indexes(table);
    bool kept = true;
    if (which == IndexEntries::all) {
        Relation taken = indexes.add_digest_entries(slot);
        while (kept && taken != nullptr) {
            kept = on_duplicate(taken);
            if (kept) taken = indexes.add_digest_entries(slot, taken);
        }
    }
    if (kept) indexes.add_other_entries(slot, which, unfinished);
    indexes.close();
    return kept;
}

// insert_row() and update_row() call on_duplicate(index) when another row has, or may come to have,
// the row's digest in this index. It returns true once ours is the only row there, raises an error
// if the other row stays, and may return false to give up an insertion. Tables without digests need
// none.
inline bool no_duplicates(Relation /* index */) {
    Assert(false);
    return true;
}

// Inserts the virtual tuple in the slot and its index entries: first those that prove its digest
// unique, without waiting. Returns false when on_duplicate() gave up: the row then lacks the other
// entries, and the caller must delete it.
template <class OnDuplicate = bool (*)(Relation)>
bool insert_row(Relation table, TupleTableSlot* slot, OnDuplicate on_duplicate = no_duplicates) {
    check_triggers(table, CMD_INSERT);
    check_partition(table, slot);
    const bool unfinished = is_unfinished(table, slot);
    table_tuple_insert(table, slot, GetCurrentCommandId(true), 0, nullptr);
    if (!add_index_entries(table, slot, IndexEntries::all, unfinished, on_duplicate)) return false;
    fire_triggers(table, CMD_INSERT, nullptr, slot);
    return true;
}
inline void insert_row(Relation table, std::span<const Datum> values, std::span<const bool> nulls) {
    TupleTableSlot* slot = new_row(table, values, nulls);
    insert_row(table, slot);
    ExecDropSingleTupleTableSlot(slot);
}

// Deletes the row at tid. Any result but TM_Ok means that another transaction has changed the row,
// or is about to.
inline TM_Result delete_row(Relation table, ItemPointerData tid, compat::Waiting waiting) {
    check_triggers(table, CMD_DELETE);
    const TM_Result result = compat::delete_tuple(table, &tid, waiting);
    if (result == TM_Ok) fire_triggers(table, CMD_DELETE, &tid, nullptr);
    return result;
}

// Deletes the rows that match. The caller has locked the table against other changes of its rows.
template <class Match>
void delete_rows(Relation table, Match match) {
    scan_committed_rows(table, [&](TupleTableSlot* slot) {
        if (!match(slot)) return;
        const TM_Result result = delete_row(table, slot->tts_tid, compat::Waiting::yes);
        if (result != TM_Ok) elog(ERROR, "unexpected result %d of deleting a row", result);
    });
    CommandCounterIncrement();
}

// Replaces the row at tid with the virtual tuple in the slot, with the index entries that the new
// version needs: after a heap-only update none, or only those of summarizing indexes. Any result
// but TM_Ok means that another transaction has changed the row, or is about to. on_duplicate() must
// not give up.
template <class OnDuplicate = bool (*)(Relation)>
TM_Result update_row(Relation table, ItemPointerData tid, TupleTableSlot* slot,
                     OnDuplicate on_duplicate = no_duplicates) {
    Assert(ItemPointerIsValid(&tid));
    check_triggers(table, CMD_UPDATE);
    check_partition(table, slot);
    const bool unfinished = is_unfinished(table, slot);
    IndexEntries which;
    const TM_Result result = compat::update_tuple(table, &tid, slot, which);
    if (result != TM_Ok) return result;
    [[maybe_unused]] const bool kept =
        add_index_entries(table, slot, which, unfinished, on_duplicate);
    Assert(kept);
    fire_triggers(table, CMD_UPDATE, &tid, slot);
    return result;
}

// --- Tables that every backend caches -----------------------------------------------------------

// One transaction after the other changes such a table: the lock is kept until the transaction
// ends.
inline void lock_changes(Table table) {
    lock_for_transaction(table_oid(table), ShareRowExclusiveLock);
}
inline Relation open_to_change(Table table) {
    lock_changes(table);
    return open_table(table, NoLock);
}

// Announces the change to all caches, and makes it visible to what follows.
inline void close_changed(Relation table) {
    CacheInvalidateRelcache(table);
    table_close(table, NoLock);
    CommandCounterIncrement();
}

// --- Keyed tables ------------------------------------------------------------------------------

// Whether the table has the tenant in its first column, before the digest (pg/store/record_tables).
inline bool has_tenant_column(TupleDesc table) {
    Assert(table->natts > 0);
    return memcmp(NameStr(TupleDescAttr(table, 0)->attname), "digest\0", 8) != 0;
}

// What the primary key must consist of, as in SQL.
const char* digest_columns(TupleDesc table);

enum class Access : bool { read, write };

// An open keyed table. An error closes it as it closes every relation.
class KeyedTable {
  public:
    KeyedTable(Oid table, Access access, Relation (*open)(Oid, LOCKMODE) = table_open);
    void close() const { table_close(table_, release_); }

    Relation table() const { return table_; }
    // The primary key. Raises 55000 unless it proves that no digest occurs twice.
    Relation open_index() const;
    void close_index(Relation index) const { index_close(index, release_); }

  private:
    Relation table_;
    LOCKMODE release_;  // NoLock: opened to write, and kept locked until the transaction ends
};

// A scan for the rows of one digest after another. What it points to is allocated in the memory
// context of its first use, which must live as long as the scan.
class DigestScan {
  public:
    // Through the primary key or, if it is given, an index that the caller has locked.
    explicit DigestScan(const KeyedTable& table, Relation index = nullptr);
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

    // Waits for the writer of the current hit, as a unique index does: for the end of its
    // transaction, or of its speculative insertion. Returns false when the bound came first. Call
    // seek() again afterwards.
    bool wait(WaitBound& bound);

  private:
    std::optional<bool> find_in_leaf();
    void release_pins();

    KeyedTable table_;
    Relation index_;
    IndexScanDesc scan_ = nullptr;  // NULL as long as the leaf pages suffice
    TupleTableSlot* slot_ = nullptr;
    pg_uuid_t digest_{};
    SnapshotData dirty_;
    std::uint64_t entries_ = 0;  // a hash of the index entries that this scan has met
};
static_assert(std::is_trivially_destructible_v<DigestScan>);

}  // namespace idem::pg
