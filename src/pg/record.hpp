// The record table: probing for the record of a key, writing it, and writing many in one call.
//
// A probe reads the unique index with a dirty snapshot (see pg/table.hpp). A claim probes after the
// key lock was granted, so that it sees the winner's row. The lock is only the fast path: a row
// that was written without it (by a superuser's DML, COPY or logical replication) is caught by the
// unique index when we write.
//
// An atomic claim writes its row once, finished. A leased claim writes it when it begins, and
// updates it later. Only the update that finishes it changes an indexed column: the partial index
// of unfinished operations has the condition state = 'p'. All other updates are heap-only.
//
// A caller that holds the key lock opens the table to write; one that has yet to wait for it opens
// the table to read.
//
// Rows are written in a compact form: a key that is a UUID takes 16 bytes, a fingerprint has half
// of its MAC, and NULL stands for the first attempt and for an answer that is not redacted.
#pragma once

#include "core/decision.hpp"
#include "core/digest.hpp"
#include "core/fingerprint.hpp"
#include "core/key.hpp"
#include "pg/boundary.hpp"
#include "pg/lock.hpp"
#include "pg/record_tables.hpp"
#include "pg/server.hpp"
#include "pg/table.hpp"

namespace idem::pg {

// A key with the scope and tenant that it belongs to, and the digest of the three.
struct KeyName {
    std::int32_t scope_id;
    std::string_view tenant;
    std::string_view key;
    core::Digest digest;
    Oid table = common_records;  // where its record is (pg/record_tables)
};

struct Record {
    TimestampTz created;
    TimestampTz expires;
    // Of an unfinished operation, the end of its lease. Of a finished one that had a lease or was
    // taken over, when it finished (core::answered_at()).
    std::optional<TimestampTz> lease_end;
    std::optional<std::int64_t> nonce;  // the random bits of the token of a leased claim
    std::int32_t attempt;
    core::State state;
    bool redacted = false;  // a part of the answer was not stored, by the scope's settings
    bytea* fingerprint;
    text* recovery_point;
    Jsonb* recovery_state;
    std::optional<std::int32_t> status;
    Jsonb* headers;
    Jsonb* response;
    bytea* body;
    Jsonb* error;  // the failure; of an unfinished operation, the last error
    // If the scope stores requests. It stays as it is stored, compressed or out of line, so that an
    // update does not write it again: see request_of().
    varlena* request = nullptr;
    std::int32_t extra_attempts = 0;  // granted beyond the scope's max_attempts
};

// NULL when no request is stored. Call it in the statement that has read the record: its snapshot
// keeps what is out of line.
Jsonb* request_of(const Record& record);

// Frees the copies that the record points to, for a call that looks again.
void free_contents(const Record& record);

// What remains when the record is erased: the key, the fingerprint, the outcome with its status,
// the sqlstate of a failure, and the name of a recovery point. A finished record that loses a part
// of what replays return is redacted.
Record erased(const Record& record);

// When the operation completed or failed; nothing while it has done neither.
std::optional<TimestampTz> completed_at(const Record& record);

// Takes the answer out of a finished record if the scope does not keep it for so long.
void hide_outlived_answer(Record& record, std::optional<std::int64_t> answer_ttl, TimestampTz now);

// What a probe has found.
struct Found {
    core::Presence presence = core::Presence::absent;
    bool in_snapshot = true;
    bool replaced = false;  // by another transaction that has not committed
    RowWriter writer{};     // the transaction that inserts or deletes the row
    ItemPointerData tid{};
    Record record{};  // unless absent or inserting; copied, palloc'd
    // The stored value of the tenant column, if the table has one: kept when the row is rewritten.
    std::optional<Datum> tenant_column{};
};

class Records : public KeyedTable {
  public:
    // Raise 42P01 if there is no such table, and the errors of require_record_table().
    static Records to_read(Oid table) {
        return table == common_records ? KeyedTable::to_read(table_oid(Table::record))
                                       : open_elsewhere(table, KeyedTable::to_read);
    }
    static Records to_write(Oid table) {
        return table == common_records ? KeyedTable::to_write(table_oid(Table::record))
                                       : open_elsewhere(table, KeyedTable::to_write);
    }

    // Raises the error of the type's input function if the table has a column for the tenant, and
    // the tenant is not a value of its type.
    void check_tenant(std::string_view tenant) const;

  private:
    Records(const KeyedTable& table) : KeyedTable(table) {}
    static Records open_elsewhere(Oid table, KeyedTable (*open_keyed)(Oid, Open));
};

// Whether the table has all columns of this release. False while the database has the objects of a
// release with fewer.
bool has_record_layout();

// --- Reading ------------------------------------------------------------------------------------

namespace record_row {

enum Column {
    column_digest,
    column_created,
    column_expires,
    column_lease_end,
    column_nonce,
    column_scope,
    column_attempt,
    column_status,
    column_state,
    column_redacted,
    column_tenant,
    column_key,
    column_fingerprint,
    column_recovery_point,
    column_recovery_state,
    column_headers,
    column_response,
    column_body,
    column_error,
    column_key_uuid,
    column_request,
    column_extra_attempts,
    columns
};

}  // namespace record_row

// The key of a row. A text may point into the row's slot.
class RowKey {
  public:
    explicit RowKey(std::string_view key) : is_uuid_(false), text_(key) {}
    explicit RowKey(const core::Uuid& uuid) : is_uuid_(true), uuid_(core::uuid_text(uuid)) {}
    std::string_view view() const {
        return is_uuid_ ? std::string_view(uuid_.data(), uuid_.size()) : text_;
    }

  private:
    bool is_uuid_;
    std::string_view text_;
    core::UuidText uuid_;
};

enum class Contents {
    all,
    claim,    // what decides about a claim: no answer, recovery point, last error or request
    outcome,  // of a finished record, what erased() keeps: an answer out of line is not read
};

// A row of a record table, in a slot, into which what it returns may point.
class RecordRow {
  public:
    explicit RecordRow(TupleTableSlot* slot)
        : slot_(slot), first_(has_tenant_column(slot->tts_tupleDescriptor) ? 2 : 1) {}

    core::Digest digest() const;
    TimestampTz created() const { return *bigint(record_row::column_created); }
    TimestampTz expires() const { return *bigint(record_row::column_expires); }
    std::optional<TimestampTz> lease_end() const { return bigint(record_row::column_lease_end); }
    std::int32_t scope_id() const { return *integer(record_row::column_scope); }
    std::int32_t attempt() const {
        return integer(record_row::column_attempt).value_or(core::first_attempt);
    }
    std::int32_t extra_attempts() const {
        return integer(record_row::column_extra_attempts).value_or(0);
    }
    core::State state() const {
        return static_cast<core::State>(DatumGetChar(*column(record_row::column_state)));
    }
    std::string_view tenant() const {
        return view_of(DatumGetTextPP(*column(record_row::column_tenant)));
    }
    RowKey key() const;
    // Whether replays of the finished record would lose something by erased().
    bool has_answer() const;
    bool has_request() const { return column(record_row::column_request).has_value(); }

    // Copies, palloc'd:
    KeyName name() const;
    Record read(Contents contents) const;
    // The stored value of the tenant column, if the table has one.
    std::optional<Datum> tenant_column() const;

  private:
    // Nothing when it is NULL.
    std::optional<Datum> column(record_row::Column which) const {
        bool null;
        const Datum value = slot_getattr(slot_, first_ + which, &null);
        return null ? std::nullopt : std::optional(value);
    }
    std::optional<std::int32_t> integer(record_row::Column which) const {
        const auto value = column(which);
        return value ? std::optional(DatumGetInt32(*value)) : std::nullopt;
    }
    std::optional<std::int64_t> bigint(record_row::Column which) const {
        const auto value = column(which);
        return value ? std::optional(DatumGetInt64(*value)) : std::nullopt;
    }
    template <class T>
    T* copy(record_row::Column which) const {
        const auto value = column(which);
        return value ? reinterpret_cast<T*>(PG_DETOAST_DATUM_COPY(*value)) : nullptr;
    }
    varlena* stored_copy(record_row::Column which) const;

    TupleTableSlot* slot_;
    int first_;  // the number of the first column that is one of idem.record's, from 1
};

// The digests of all records of the tenant that are committed now, in ascending order, with their
// tables; palloc'd. Reads these tables; of all scopes or of one.
struct RecordPlace {
    core::Digest digest;
    Oid table;

    bool operator<(const RecordPlace& other) const {
        return digest == other.digest ? table < other.table : digest < other.digest;
    }
};
std::span<const RecordPlace> records_of_tenant(const List* tables,
                                               std::optional<std::int32_t> scope,
                                               std::string_view tenant);

// The current hit of a scan for the key's digest, read. Raises 54000 when it is the record of
// another key.
Found found_by(const DigestScan& scan, const KeyName& name, Contents contents);
// Scans for the key by itself.
Found probe(const Records& records, const KeyName& name, Contents contents = Contents::all);

// Scans for a key of which only the digest is known. Nothing when there is no row, or when it is
// still being inserted.
struct FoundKey {
    KeyName name;  // palloc'd
    Found found;
};
std::optional<FoundKey> probe_digest(const Records& records, const core::Digest& digest);

// A search for the unfinished operations of a scope, in no order. It reads the index of unfinished
// operations; while there is none, because a superuser has dropped it, the whole table. It sees the
// newest committed rows and those of this transaction, and leaves no predicate locks. A row that is
// being moved meanwhile may be missed.
class UnfinishedSearch {
  public:
    UnfinishedSearch(const Records& records, std::int32_t scope_id);
    UnfinishedSearch(const UnfinishedSearch&) = delete;
    UnfinishedSearch& operator=(const UnfinishedSearch&) = delete;
    void end();

    // Valid until the next step of the search.
    std::optional<RecordRow> next();

  private:
    SysScanDesc scan_;  // despite its name it serves any table, with an index or without
};
static_assert(std::is_trivially_destructible_v<UnfinishedSearch>);

// The key behind a digest, palloc'd, for a caller that has only a token. Nothing when there is no
// row, or when it is still being inserted. Reads nothing else: it is not decided yet whether the
// caller may know more, and the time that the decision takes must not depend on what is stored.
std::optional<KeyName> name_behind(const Records& records, const core::Digest& digest);

// --- Writing one record -------------------------------------------------------------------------

// The row that may exist under the key that is being written.
enum class Predecessor : bool {
    none,      // a row that is found belongs to another transaction
    outlived,  // an expired row, or an unfinished one of this attempt or an earlier: is replaced
};

// What became of a row that another transaction may have been changing without the key lock.
enum class WriteOutcome {
    written,
    gone,     // of a deletion: another transaction has deleted the row already
    blocked,  // another transaction kept the row for longer than the bound; nothing is written
};
struct WriteResult {
    WriteOutcome outcome;
    TransactionId in_the_way;  // blocked: by this transaction, as far as that is known
};

// Writes the row, under the key lock. Raises 40001 when a live row of another transaction turns out
// to hold the key.
WriteResult write_record(const Records& records, const KeyName& name, const Record& record,
                         Predecessor predecessor, const WaitBound& bound);

// The same for a caller that has probed in this very call, since it got the key lock: the row that
// it found, if any, is replaced without another probe. In a later call the row's place could hold
// another row. During one call, the statement's snapshot keeps VACUUM from it.
WriteResult write_over(const Records& records, const KeyName& name, const Record& record,
                       const Found& old, const WaitBound& bound);

// Deletes the row that was found, under the key lock.
WriteResult delete_record(const Records& records, const Found& found, const WaitBound& bound);

// Deletes a row of a keyed table, under its key lock. Raises 40001 with the detail when another
// transaction has replaced it.
WriteResult delete_at(const KeyedTable& table, ItemPointerData tid, const WaitBound& bound,
                      const char* replaced);

// --- Erasing answers without key locks -----------------------------------------------------------

// Whether the record is finished and still has an answer, or the request, that it
// should not have.
bool has_outlived_answer(const RecordRow& row, std::int64_t answer_ttl, TimestampTz now);

// Replaces the finished record in the slot by what erased() leaves of it. Does not wait: returns
// false when another transaction has locked the row or is changing it.
bool try_erase(Relation records, TupleTableSlot* slot);

// --- Writing many records -----------------------------------------------------------------------

// Writes many records in one call and without key locks, for idem.once_each().
//
// Only the unique index keeps concurrent calls apart, as for INSERT ... ON CONFLICT and by the same
// means: a row is inserted speculatively, and is taken back at once when its key turns out to be
// taken. A caller that meets such a row waits for that decision only, never for the transaction,
// and the inserting transaction waits for nothing before it has decided. So two callers of one key
// never wait for each other. Neither do callers of many keys, because all take them in the order of
// the digests: a caller that waits has inserted smaller digests only.
//
// During REINDEX CONCURRENTLY other unique indexes on the digest exist beside the primary key. All
// of them take part in the decision. All other indexes, whose functions and constraints may wait or
// raise errors, are filled after it.
//
// The scan, the open indexes and the row's slot serve all keys of the call; the memory of one key
// is freed at the next look(). The table is locked as by Records::to_write() before the index list
// is read, so the list stays valid until end().
class BulkWriter {
  public:
    explicit BulkWriter(const Records& records);
    BulkWriter(const BulkWriter&) = delete;
    BulkWriter& operator=(const BulkWriter&) = delete;
    void end();

    // Reads what decides about the key. Valid until the next look. Digests must not decrease.
    Found look(const KeyName& name);
    // Inserts the record, or replaces the row that was found. Returns false when another
    // transaction came first; look again then.
    bool write(const KeyName& name, const Record& record, const Found& found);
    // Waits for the writer of the row that was found.
    void wait() { scan_.wait(); }

  private:
    bool insert();
    bool replace(const KeyName& name, const Found& found);

    Records records_;
    DigestScan scan_;
    OpenIndexes indexes_;
    TupleTableSlot* row_;
    MemoryContext memory_;  // of one key
    core::Digest newest_{};
};
static_assert(std::is_trivially_destructible_v<BulkWriter>);

}  // namespace idem::pg
