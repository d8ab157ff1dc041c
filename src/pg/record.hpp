// The record table: one probe, one write.
//
// The probe reads the unique index with a dirty snapshot (see pg/keyed_table). It is made after the
// key lock was granted, so that it sees the winner; the lock is only the fast path, and a row that
// slipped past it (owner's DML, COPY, logical replication) is caught by the unique index when we
// write.
//
// A row is written once by an atomic claim. A leased one writes it when it begins and updates it as
// it goes on; no indexed column ever changes, so that these updates stay in the heap.
//
// Whoever holds the key lock opens the table to write; whoever has yet to wait for it, to read.
//
// Many records in one call, without key locks: what idem.once_each() writes with.
//
// Only the unique index keeps concurrent calls apart, as for INSERT ... ON CONFLICT, and by the
// same means: a row goes in speculatively, and is taken back at once when its key turns out to be
// taken. A caller that meets such a row waits for that decision only, never for the transaction,
// and the inserter waits for nothing before it has decided. So two callers of one key cannot come
// to wait for each other. Over many keys they cannot either, if both go in the order of the
// digests: a caller that waits holds only smaller ones.
//
// Beside the primary key, other unique indexes may have the digest: those of REINDEX CONCURRENTLY.
// All of them take part in the decision; all other indexes, whose functions and constraints may
// wait or raise, are filled after it.
//
// The scan, the open indexes and the row's slot serve all keys of the call; what one key needs is
// freed at the next look. The table is locked as by Records::to_write(), before the index list is
// read, so the list stays true until end().
#pragma once

#include "core/decision.hpp"
#include "core/digest.hpp"
#include "pg/boundary.hpp"
#include "pg/server.hpp"
#include "pg/table.hpp"

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
    Work working{};  // who inserts or deletes it
    ItemPointerData tid{};
    Record record{};  // valid unless absent or inserting; copied, palloc'd
};

class Records : public KeyedTable {
  public:
    static Records to_read() { return KeyedTable::to_read(Table::record); }
    static Records to_write() { return KeyedTable::to_write(Table::record); }

  private:
    Records(const KeyedTable& table) : KeyedTable(table) {}
};

// Whether the table is laid out as this library reads it: not while an upgrade is due.
bool has_record_layout();

// The end of life, and the scope's id, of the record in the slot.
TimestampTz record_expires(TupleTableSlot* slot);
std::int32_t record_scope(TupleTableSlot* slot);

// What can be said of the record in the slot without its answer. Tenant and key may point into the
// slot.
struct Glance {
    TimestampTz created;
    TimestampTz expires;
    std::optional<TimestampTz> lease_end;
    bool released;  // of a leased claim: nobody's, until the next attempt
    std::int32_t scope_id;
    std::int32_t attempt;
    core::State state;
    std::string_view tenant;
    std::string_view key;
    std::int64_t answer_bytes;  // as they are stored
};
Glance glance(TupleTableSlot* slot);

enum class Contents {
    all,
    claim,  // what decides about a claim: neither answer nor recovery point
};

// What the hit of a scan for the key's digest says of the key. Raises 54000 when it is a record of
// another identity.
Found found_by(const DigestScan& scan, const KeyName& name, Contents contents);
// The same with a scan of its own.
Found probe(const Records& records, const KeyName& name);

// Whose row it is, palloc'd, for a caller who has only a token: nothing when there is none, or it
// is still being inserted. Reads no more than that: whether the caller may know more is yet to be
// decided, and how long the decision takes must not depend on what is stored.
std::optional<KeyName> name_behind(const Records& records, const core::Digest& digest);

// What may stand under the key that is being written.
enum class Over : bool {
    nothing,   // a row that turns up belongs to somebody else
    outlived,  // an expired row, or this or an earlier attempt, unfinished: it is replaced
};

// The row of a record in a slot of the record table. What it points to is palloc'd, or the
// record's.
void store_row(TupleTableSlot* slot, const KeyName& name, const Record& record);

// Puts the row in the place of the one at tid, with the index entries that it needs. Raises 40001
// when another live row turns out to hold the key; else, what became of the row at tid.
Changed replace_row(const Records& records, const KeyName& name, ItemPointerData tid,
                    TupleTableSlot* slot, const WaitBound& bound);

// What became of a row that somebody past the key lock may have had in hand.
enum class Written {
    yes,
    gone,  // of a deletion: somebody came first
    no,    // somebody kept it in hand for longer than the bound; nothing is written
};
struct Writing {
    Written written;
    TransactionId in_the_way;  // no: whose transaction it was, as far as that can be told
};

// Writes the row, under the key lock. Raises 40001 when a live row that is not ours turns out to
// hold the key.
Writing write_record(const Records& records, const KeyName& name, const Record& record, Over over,
                     const WaitBound& bound);

// Deletes the row that was found, under the key lock.
Writing delete_record(const Records& records, const Found& found, const WaitBound& bound);

class BulkWriter {
  public:
    explicit BulkWriter(const Records& records);
    BulkWriter(const BulkWriter&) = delete;
    BulkWriter& operator=(const BulkWriter&) = delete;
    void end();

    // What decides about the key; valid until the next look.
    Found look(const KeyName& name);
    // Inserts the record, or puts it in the place of the row that was found. False when somebody
    // came first: look again.
    bool write(const KeyName& name, const Record& record, const Found& found);
    // Waits for whoever is at work on the row that was found.
    void wait() { scan_.wait(); }

  private:
    bool insert();
    bool replace(const KeyName& name, const Found& found);

    Records records_;
    DigestScan scan_;
    OpenIndexes indexes_;
    TupleTableSlot* row_;
    MemoryContext memory_;  // of one key
};
static_assert(std::is_trivially_destructible_v<BulkWriter>);

}  // namespace idem::pg
