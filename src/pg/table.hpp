// idem's own tables: finding them, and writing rows without SPI.
//
// Without SPI there is no plan to go stale, no row security to pass and no role to switch to; who
// may do what is checked before. Found OIDs are kept per backend until the relation cache says that
// the table is gone. Every index that the relation has at that moment is maintained, whoever made
// it and of whatever kind; OIDs of indexes are never kept. A deferrable constraint is checked at
// once.
//
// A table whose primary key is a 128-bit digest, and the scan that finds the rows of one.
//
// The scan reads the unique index with a dirty snapshot, as INSERT ... ON CONFLICT's own check
// does: it sees the newest committed row, whatever the transaction's snapshot, tells who is at work
// on it, and leaves no predicate locks behind.
//
// Whoever is about to write locks table and index RowExclusive until the transaction ends, so that
// index builds wait for him. Whoever only reads, or has yet to wait for a key lock, does so under
// AccessShare and keeps nothing: otherwise a waiter, the holder and an ALTER TABLE could wait for
// each other.
#pragma once

#include "core/decision.hpp"
#include "core/digest.hpp"
#include "pg/compat.hpp"
#include "pg/lock.hpp"
#include "pg/server.hpp"

namespace idem::pg {

using compat::IndexEntries;

// The last is a sequence. dropped_scope is there from 0.3.0 on.
enum class Table { record, watermark, scope, dropped_scope, secret, sweep, scope_id };
inline constexpr std::size_t table_count = 7;

// Opens the table, or raises 55000 when the extension is not installed in this database.
Relation open_table(Table table, LOCKMODE mode);

// The table's OID; raises as open_table() does.
Oid table_oid(Table table);

// The same, but InvalidOid when there is none.
Oid find_table_oid(Table table);

// Has the function called whenever the table is invalidated: changed by whoever announces it with
// CacheInvalidateRelcache(), altered, dropped, or any of that rolled back. One function a table; it
// must not raise or read tables.
void on_invalidation(Table table, void (*forget)());

// Registers with the relation cache.
void init_tables();

// Whether the index proves that no two rows have the same digest, the first column of a keyed
// table: the primary key, and beside it an index that REINDEX CONCURRENTLY is building or has yet
// to drop. One that becomes ready after we have looked is completed by its builder, which waits for
// our transaction first.
bool is_digest_index(Relation index);

// What an insertion or an update calls when another row has, or may come to have, the row's digest:
// it returns true once ours is the only one, raises if the other row stays, and may give up an
// insertion by returning false. This one is for tables without digests.
struct NothingToSettle {
    bool operator()() const {
        Assert(false);
        return true;
    }
};

// Inserts the virtual tuple in the slot, with its index entries: first those that prove its digest
// unique, without waiting; then the others, which may wait and raise as those of any INSERT. False
// when settle() gave up: the row lacks the other entries, and is to be taken back.
template <class Settle = NothingToSettle>
bool insert_row(Relation table, TupleTableSlot* slot, Settle settle = {});

// Puts the virtual tuple in the slot in the place of the row at tid, with the index entries that
// the new version needs: after a heap-only update none, or only those of summarizing indexes.
// Anything but TM_Ok says that somebody else has changed the row, or is about to. settle() must not
// give up.
template <class Settle = NothingToSettle>
TM_Result update_row(Relation table, ItemPointerData tid, TupleTableSlot* slot,
                     compat::Waiting waiting, Settle settle = {});

// The indexes of a table, opened once for many rows. Good as long as the lock on the table under
// which they were opened.
class OpenIndexes {
  public:
    explicit OpenIndexes(Relation table);
    void close();

    // The entries that prove the digest unique. Never waits. False when another row has, or may
    // come to have, the same digest; the row is to be taken back then. All go through these indexes
    // in the same order and stop at the first that is taken, so that of two one comes through.
    bool claim_digest(TupleTableSlot* slot);
    // All other entries of the row. Waits and raises as an INSERT does.
    void add_other_entries(TupleTableSlot* slot, IndexEntries which);

  private:
    void check_now(Relation index, IndexInfo* info, TupleTableSlot* slot);

    EState* estate_;
    ResultRelInfo* target_;
    List* digest_indexes_ = NIL;  // positions among the target's
};
static_assert(std::is_trivially_destructible_v<OpenIndexes>);

// A scan of so many blocks, of the newest committed rows: without predicate locks, and of a large
// table through a ring of buffers that leaves the others alone.
TableScanDesc scan_blocks(Relation relation, BlockNumber first, BlockNumber size);

// Whether this very transaction wrote the row version in the slot.
bool written_here(TupleTableSlot* slot);

// Puts the values into the slot, in place of what it holds; columns beyond them are NULL.
void fill_row(TupleTableSlot* slot, std::span<const Datum> values, std::span<const bool> nulls);

// The same in a new slot of the relation. Drop it with ExecDropSingleTupleTableSlot().
TupleTableSlot* new_row(Relation relation, std::span<const Datum> values,
                        std::span<const bool> nulls);

// The parts of insert_row() and update_row().
struct DigestEntries {
    bool alone = true;          // no other row has, or may come to have, the same digest
    bool more_indexes = false;  // there are others to be filled
};
DigestEntries add_digest_entries(Relation table, TupleTableSlot* slot);
void add_other_entries(Relation table, TupleTableSlot* slot, IndexEntries which);

template <class Settle>
bool add_index_entries(Relation table, TupleTableSlot* slot, IndexEntries which, Settle settle) {
    bool more_indexes = which == IndexEntries::summarizing;
    if (which == IndexEntries::all) {
        const DigestEntries made = add_digest_entries(table, slot);
        if (!made.alone && !settle()) return false;
        more_indexes = made.more_indexes;
    }
    if (more_indexes) add_other_entries(table, slot, which);
    return true;
}

template <class Settle>
bool insert_row(Relation table, TupleTableSlot* slot, Settle settle) {
    table_tuple_insert(table, slot, GetCurrentCommandId(true), 0, nullptr);
    return add_index_entries(table, slot, IndexEntries::all, settle);
}

template <class Settle>
TM_Result update_row(Relation table, ItemPointerData tid, TupleTableSlot* slot,
                     compat::Waiting waiting, Settle settle) {
    IndexEntries which;
    const TM_Result result = compat::update_tuple(table, &tid, slot, waiting, which);
    if (result != TM_Ok) return result;
    const bool settled = add_index_entries(table, slot, which, settle);
    Assert(settled);
    (void)settled;
    return result;
}

pg_uuid_t uuid_of(const core::Digest& digest);

// The opened table. Trivial: an error closes it as it closes everything.
class KeyedTable {
  public:
    static KeyedTable to_read(Table table) { return {table, AccessShareLock, AccessShareLock}; }
    static KeyedTable to_write(Table table) { return {table, RowExclusiveLock, NoLock}; }
    void close() const { table_close(table_, release_); }

    Relation table() const { return table_; }
    // The primary key. Raises 55000 unless it proves that no digest is there twice.
    Relation open_index() const;
    void close_index(Relation index) const { index_close(index, release_); }

  private:
    KeyedTable(Table table, LOCKMODE mode, LOCKMODE release);

    Relation table_;
    LOCKMODE mode_;
    LOCKMODE release_;
};

// What it points to is allocated where it is first used: keep to one memory context, or to longer
// lived ones.
class DigestScan {
  public:
    explicit DigestScan(const KeyedTable& table);
    DigestScan(const DigestScan&) = delete;
    DigestScan& operator=(const DigestScan&) = delete;
    void end();

    // Begins to look for the digest; next() goes from hit to hit.
    void seek(const core::Digest& digest);
    bool next();
    // seek(), and the hit that binds the key: of a row that is being replaced the old version, even
    // if the new one comes first; a row that is being inserted only if there is no other. Nothing
    // is missed, whatever is replaced meanwhile. Never waits.
    bool find(const core::Digest& digest);

    // Of the hit:
    TupleTableSlot* slot() const { return slot_; }
    core::Presence presence() const;
    bool in_snapshot() const;  // the transaction's snapshot can see it; true in READ COMMITTED
    Work working() const;      // who inserts or deletes it

    // Waits for whoever is at work on the hit, as a unique index does: for the end of his
    // transaction, or of his speculative insertion; false when the bound came first. Without one,
    // only the session's lock_timeout ends it. Then seek() again.
    bool wait(const WaitBound& bound);
    void wait();

  private:
    void restart();
    void let_go();

    KeyedTable table_;
    Relation index_;
    IndexScanDesc scan_;
    TupleTableSlot* slot_ = nullptr;
    pg_uuid_t digest_{};
    SnapshotData dirty_;
    std::uint64_t entries_ = 0;  // tells the index entries that this scan has met from others
};
static_assert(std::is_trivially_destructible_v<DigestScan>);

}  // namespace idem::pg
