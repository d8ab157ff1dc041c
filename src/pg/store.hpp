// The record table: one probe, one write.
//
// The probe reads the unique index with a dirty snapshot, as INSERT ... ON CONFLICT's own check
// does: it sees the newest committed row, whatever the transaction's snapshot, sees unfinished work
// of other transactions, and leaves no predicate locks behind. It is made after the key lock was
// granted, so that it sees the winner; the lock is only the fast path, and a row that slipped past
// it (owner's DML, COPY, logical replication) is caught by the unique index when we write.
//
// The table is opened after the key lock, never before, and stays locked (RowExclusive) until the
// transaction ends, so that concurrent index builds wait for us.
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
    std::int32_t attempt;
    core::State state;
    bytea* fingerprint;
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

Relation open_records(LOCKMODE mode);

// The end of life of the record in the slot.
TimestampTz record_expires(TupleTableSlot* slot);

// Raises 54000 when the digest is taken by a record of another identity.
Found probe(Relation records, const KeyName& name);

// Writes the one row of a finished operation. over_expired: an expired row may stand in its place.
// Raises 40001 when a live row that is not ours turns out to hold the key.
void write_record(Relation records, const KeyName& name, const Record& record, bool over_expired);

}  // namespace idem::pg
