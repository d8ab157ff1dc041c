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
#include "pg/lock.hpp"
#include "pg/server.hpp"
#include "pg/table.hpp"

namespace idem::pg {

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
