// The record table: one probe, one write.
//
// The probe reads the unique index with a dirty snapshot, as INSERT ... ON CONFLICT's own check
// does: it sees the newest committed row, whatever the transaction's snapshot, sees unfinished work
// of other transactions, and leaves no predicate locks behind. It is made after the key lock was
// granted, so that it sees the winner; the lock is only the fast path, and a row that slipped past
// it (owner's DML, COPY, logical replication) is caught by the unique index when we write.
//
// A row is written once by an atomic claim. A leased one writes it when it begins and updates it as
// it goes on; no indexed column ever changes, so that these updates stay in the heap.
//
// Whoever holds the key lock locks table and index RowExclusive until the transaction ends, so that
// index builds wait for him. Whoever has yet to wait for it reads under AccessShare and keeps
// nothing: otherwise a waiter, the holder and an ALTER TABLE could wait for each other.
#pragma once

#include "core/decision.hpp"
#include "core/digest.hpp"
#include "pg/boundary.hpp"
#include "pg/server.hpp"

namespace idem::pg {

// A key as the server has it and as the digest means it.
struct KeyName {
    std::int32_t scope_id;
    std::string_view tenant;
    std::string_view key;
    core::Digest digest;
};

struct Record {
    TimestampTz created;
    TimestampTz expires;
    std::optional<TimestampTz> lease_end;  // of a leased claim
    std::optional<std::int64_t> nonce;     // its token's random bits
    std::int32_t attempt;
    core::State state;
    bool redacted = false;  // the scope kept a part of the answer out of the record
    bytea* fingerprint;
    text* recovery_point;
    Jsonb* recovery_state;
    std::optional<std::int32_t> status;
    Jsonb* headers;
    Jsonb* response;
    bytea* body;
    Jsonb* error;
};

struct Found {
    core::Presence presence = core::Presence::absent;
    bool in_snapshot = true;
    TransactionId working = InvalidTransactionId;  // who inserts or deletes it
    ItemPointerData tid{};
    Record record{};  // valid unless absent or inserting; copied, palloc'd
};

// The opened table. Trivial: an error closes it as it closes everything.
class Records {
  public:
    static Records to_read() { return {AccessShareLock, AccessShareLock}; }
    static Records to_write() { return {RowExclusiveLock, NoLock}; }
    void close() const { table_close(table_, release_); }

    Relation table() const { return table_; }
    Relation open_index() const;
    void close_index(Relation index) const { index_close(index, release_); }

  private:
    Records(LOCKMODE mode, LOCKMODE release);

    Relation table_;
    LOCKMODE mode_;
    LOCKMODE release_;
};

// The end of life, and the scope's id, of the record in the slot.
TimestampTz record_expires(TupleTableSlot* slot);
std::int32_t record_scope(TupleTableSlot* slot);

// Raises 54000 when the digest is taken by a record of another identity.
Found probe(const Records& records, const KeyName& name);

// As probe(), by the digest alone, for whoever has only a token; name is what the row says.
struct Named {
    Found found;
    KeyName name;  // valid unless absent or inserting; palloc'd
};
Named probe_digest(const Records& records, const core::Digest& digest);

// What may stand under the key that is being written.
enum class Over : bool {
    nothing,   // a row that turns up belongs to somebody else
    outlived,  // an expired row, or this or an earlier attempt, unfinished: it is replaced
};

// Writes the row. Raises 40001 when a live row that is not ours turns out to hold the key.
void write_record(const Records& records, const KeyName& name, const Record& record, Over over);

// Deletes the row that was found, under the key lock. False when somebody came first, past the
// lock.
bool delete_record(const Records& records, const Found& found);

}  // namespace idem::pg
