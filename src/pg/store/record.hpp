// The record table: probing for the record of a key, writing it, and writing many in one call.
//
// A probe reads the unique index with a dirty snapshot (see pg/store/table.hpp). A claim probes
// after the key lock was granted, so that it sees the winner's row. The lock is only the fast path:
// a row that was written without it (by a superuser's DML, COPY or logical replication) is caught
// by the unique index when we write.
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

#include "core/key.hpp"
#include "pg/store/record_tables.hpp"
#include "pg/store/row_lock.hpp"
#include "pg/store/table.hpp"

namespace idem::pg {

// A key with the scope and tenant that it belongs to, and the digest of the three.
struct Key {
    std::int32_t scope_id;
    std::string_view tenant;
    std::string_view key;
    core::Digest digest;
    Oid table = common_records;  // where its record is (pg/store/record_tables)
};

// A record: the view of a row of a record table, which reads a column when it is asked for. The row
// stays in its slot, and the view is valid as long; or it is a copy. Without a row, every column is
// NULL.
//
// What the row stores compressed or out of line is fetched when it is asked for. Ask in the
// statement that has read the row: its snapshot keeps what is out of line.
class Record {
  public:
    // Those of idem.record. Another record table has the same, after one for the tenant if it has
    // that (pg/store/record_tables).
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

    Record() = default;
    explicit Record(TupleTableSlot* slot)
        : slot_(slot),
          values_(slot->tts_values),
          nulls_(slot->tts_isnull),
          first_(has_tenant_column(slot->tts_tupleDescriptor) ? 1 : 0) {}
    // A copy of the row in the slot, palloc'd in one piece.
    static Record copy_of(TupleTableSlot* slot);
    // Frees the copy, for a call that looks again.
    void free() const;

    core::Digest digest() const {
        return std::bit_cast<core::Digest>(*DatumGetUUIDP(*column(column_digest)));
    }
    TimestampTz created() const { return number<std::int64_t>(column_created).value_or(0); }
    TimestampTz expires() const { return number<std::int64_t>(column_expires).value_or(0); }
    // Of an unfinished operation, the end of its lease. Of a finished one that had a lease or was
    // taken over, when it finished (core::answered_at()).
    std::optional<TimestampTz> lease_end() const { return number<std::int64_t>(column_lease_end); }
    // The random bits of the token of a leased claim.
    std::optional<std::int64_t> nonce() const { return number<std::int64_t>(column_nonce); }
    std::int32_t scope_id() const { return number<std::int32_t>(column_scope).value_or(0); }
    std::int32_t attempt() const {
        return number<std::int32_t>(column_attempt).value_or(core::first_attempt);
    }
    // Granted beyond the scope's max_attempts.
    std::int32_t extra_attempts() const {
        return number<std::int32_t>(column_extra_attempts).value_or(0);
    }
    std::optional<std::int32_t> status() const { return number<std::int32_t>(column_status); }
    core::State state() const {
        return static_cast<core::State>(DatumGetChar(column(column_state).value_or(0)));
    }
    bool is_finished() const { return state() != core::State::in_progress; }
    // A part of the answer was not stored, by the scope's settings, or has been erased.
    bool redacted() const { return DatumGetBool(column(column_redacted).value_or(0)); }
    std::string_view tenant() const { return text_in(column_tenant); }
    std::string_view key() const;  // of a key that is stored as a UUID, the text is palloc'd
    bytea* fingerprint() const { return packed(column_fingerprint); }
    text* recovery_point() const { return packed(column_recovery_point); }
    Jsonb* recovery_state() const { return jsonb(column_recovery_state); }
    Jsonb* headers() const { return jsonb(column_headers); }
    Jsonb* response() const { return jsonb(column_response); }
    bytea* body() const { return packed(column_body); }
    // The failure; of an unfinished operation, the last error.
    Jsonb* error() const { return jsonb(column_error); }
    // If the scope stores requests.
    Jsonb* request() const { return jsonb(column_request); }
    // As it is stored, compressed or out of line, so that an update does not write it again.
    varlena* stored_request() const {
        return reinterpret_cast<varlena*>(DatumGetPointer(column(column_request).value_or(0)));
    }

    // Headers, a response or a body.
    bool has_answer() const {
        return column(column_headers) || column(column_response) || column(column_body);
    }
    // When the operation completed or failed; nothing while it has done neither.
    std::optional<TimestampTz> completed_at() const {
        return is_finished() ? std::optional(core::answered_at(created(), lease_end()))
                             : std::nullopt;
    }
    bool is_of(const Key& key) const;
    // The key of a record in this table, palloc'd.
    Key key_in(Oid table) const;
    // Whether both have the same values, those out of line at the same place.
    bool is_same_as(const Record& other) const;

  protected:
    // Nothing when it is NULL.
    std::optional<Datum> column(Column which) const {
        if (nulls_ == nullptr) return std::nullopt;
        const int at = first_ + which;
        if (slot_ != nullptr) slot_getsomeattrs(slot_, at + 1);
        return nulls_[at] ? std::nullopt : std::optional(values_[at]);
    }

    TupleTableSlot* slot_ = nullptr;  // NULL: the values are in a copy
    Datum* values_ = nullptr;
    bool* nulls_ = nullptr;
    int first_ = 0;  // where the first column that is one of idem.record's is

  private:
    template <class T>
    std::optional<T> number(Column which) const {
        const auto value = column(which);
        return value ? std::optional(static_cast<T>(*value)) : std::nullopt;
    }
    varlena* packed(Column which) const {
        const auto value = column(which);
        return value ? PG_DETOAST_DATUM_PACKED(*value) : nullptr;
    }
    Jsonb* jsonb(Column which) const {
        const auto value = column(which);
        return value ? DatumGetJsonbP(*value) : nullptr;
    }
    std::string_view text_in(Column which) const {
        const varlena* value = packed(which);
        return value == nullptr ? std::string_view() : view_of(value);
    }
};
// A record that is to be written: of a key that has none, or the next version of one.
class NewRecord : public Record {
  public:
    explicit NewRecord(const Key& key);
    explicit NewRecord(const Record& old);

    void set_created(TimestampTz time) { set(column_created, TimestampTzGetDatum(time)); }
    void set_expires(TimestampTz time) { set(column_expires, TimestampTzGetDatum(time)); }
    void set_lease_end(std::optional<TimestampTz> time) { set_bigint(column_lease_end, time); }
    void set_nonce(std::optional<std::int64_t> nonce) { set_bigint(column_nonce, nonce); }
    void set_attempt(std::int32_t attempt) {
        set(column_attempt, Int32GetDatum(attempt), attempt == core::first_attempt);
    }
    void set_extra_attempts(std::int32_t attempts) {
        set(column_extra_attempts, Int32GetDatum(attempts), attempts == 0);
    }
    void set_status(std::optional<std::int32_t> status) {
        set(column_status, Int32GetDatum(status.value_or(0)), !status);
    }
    void set_state(core::State state) { set(column_state, CharGetDatum(static_cast<char>(state))); }
    void set_redacted(bool redacted) { set(column_redacted, BoolGetDatum(true), !redacted); }
    void set_fingerprint(const bytea* value) { set_pointer(column_fingerprint, value); }
    void set_recovery_point(const text* name) { set_pointer(column_recovery_point, name); }
    void set_recovery_state(const Jsonb* state) { set_pointer(column_recovery_state, state); }
    void set_headers(const Jsonb* headers) { set_pointer(column_headers, headers); }
    void set_response(const Jsonb* response) { set_pointer(column_response, response); }
    void set_body(const bytea* body) { set_pointer(column_body, body); }
    void set_error(const Jsonb* error) { set_pointer(column_error, error); }
    void set_request(const varlena* request) { set_pointer(column_request, request); }

    // Puts the record into a slot of a record table. If the table has a column for the tenant, the
    // next version of a record keeps its value there: the text is read but once.
    void store_in(TupleTableSlot* slot) const;

  private:
    void set(Column which, Datum value, bool null = false) {
        values_[first_ + which] = value;
        nulls_[first_ + which] = null;
    }
    void set_bigint(Column which, std::optional<std::int64_t> value) {
        set(which, Int64GetDatum(value.value_or(0)), !value);
    }
    void set_pointer(Column which, const void* value) {
        set(which, PointerGetDatum(value), value == nullptr);
    }
};
static_assert(std::is_trivially_destructible_v<NewRecord>);

// What remains when the record is erased: the key, the fingerprint, the outcome with its status,
// the sqlstate of a failure, and the name of a recovery point. A finished record that loses a part
// of what replays return is redacted.
NewRecord erased(const Record& record);

// Takes the answer out of a finished record if the scope does not keep it for so long.
void hide_expired_answer(Record& record, std::optional<std::int64_t> answer_ttl, TimestampTz now);

struct Found {
    core::Presence presence = core::Presence::absent;
    bool in_snapshot = true;
    bool replaced = false;  // by another transaction that has not committed
    RowWriter writer{};     // the transaction that inserts or deletes the row
    ItemPointerData tid{};
    Record record{};  // a copy; none while the key is absent or inserting
};

class Records : public KeyedTable {
  public:
    Records(Oid table, Access access);

    // Raises the error of the type's input function if the table has a column for the tenant, and
    // the tenant is not a value of its type.
    void check_tenant(std::string_view tenant) const;
};

// Whether the table has all columns of this release. False while the database has the objects of a
// release with fewer.
bool has_record_layout();

// --- Reading ------------------------------------------------------------------------------------

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

// Scans for the key by itself. Raises 54000 when the row is the record of another key. The second
// opens the table of the key and closes it; to write, it asks again whether the key is there.
Found probe(const Records& records, const Key& key);
Found probe(const Key& key, Access access);

// The same for a key of the scope of which only the digest is known, to write.
Found probe_digest(std::int32_t scope, Oid table, const core::Digest& digest);

// Of for_each_unfinished(), which ends it.
SysScanDesc begin_unfinished_search(Relation table, std::int32_t scope_id);

// Calls visit(record) for the unfinished operations of a scope, in no order, until it returns
// false. Reads the index of unfinished operations; while there is none, because a superuser has
// dropped it, the whole table. Sees the newest committed rows and those of this transaction, and
// leaves no predicate locks. A row that is being moved meanwhile may be missed.
template <class Visit>
void for_each_unfinished(Relation table, std::int32_t scope_id, Visit visit) {
    trivial<Visit>();
    SysScanDesc scan = begin_unfinished_search(table, scope_id);
    while (HeapTupleIsValid(systable_getnext(scan))) {
        CHECK_FOR_INTERRUPTS();
        const Record record(scan->slot);
        if (!record.is_finished() && !visit(record)) break;
    }
    systable_endscan(scan);
}

// An unexpired operation of the scope that is unfinished and has a recovery point, in any record
// table; palloc'd. Waits for no transaction.
struct ResumableOperation {
    const char* key;
    const char* recovery_point;
};
std::optional<ResumableOperation> resumable_operation(std::int32_t scope_id);

// The key behind a digest, palloc'd, for a caller that has only a token. Nothing when there is no
// row, or when it is still being inserted. Reads nothing else: it is not decided yet whether the
// caller may know more, and the time that the decision takes must not depend on what is stored.
std::optional<Key> key_behind(Oid table, const core::Digest& digest);

// --- Writing one record -------------------------------------------------------------------------

// Writes the row, under the key lock. The result is TM_Ok or, when another transaction kept the row
// for longer than the bound, TM_WouldBlock; nothing is written then. Raises 40001 when a live row
// of another transaction turns out to hold the key. replaces: an expired row, or an unfinished one
// of this attempt or an earlier, may exist and is replaced; otherwise, a row that is found belongs
// to another transaction.
ChangeResult write_record(const Key& key, const NewRecord& record, bool replaces, WaitBound& bound);

// The same for a caller that has probed in this very call, since it got the key lock: the row that
// it found, if any, is replaced without another probe. In a later call the row's place could hold
// another row. During one call, the statement's snapshot keeps VACUUM from it.
ChangeResult write_over(Oid table, const NewRecord& record, const Found& old, WaitBound& bound);

// Deletes the row that was found, under the key lock. Another result is TM_Deleted: another
// transaction has deleted the row already.
ChangeResult delete_record(Oid table, const Found& found, WaitBound& bound);

// Deletes a row of a keyed table, under its key lock. Raises 40001 with the detail when another
// transaction has replaced it.
ChangeResult delete_at(const KeyedTable& table, ItemPointerData tid, WaitBound& bound,
                       const char* replaced);

// --- Erasing answers without key locks -----------------------------------------------------------

// Replaces the record in the slot by what erased() leaves of it, if it is finished and the scope
// does not keep its answer for so long. Returns false if there is nothing to erase, or if another
// transaction has locked the row or is changing it; does not wait.
bool erase_expired_answer(Relation records, TupleTableSlot* slot, std::int64_t answer_ttl,
                          TimestampTz now);

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
// is freed at the next look(). The table is open to write before the index list is read, so the
// list stays valid until end().
class BulkWriter {
  public:
    explicit BulkWriter(const Records& records);
    BulkWriter(const BulkWriter&) = delete;
    BulkWriter& operator=(const BulkWriter&) = delete;
    void end();

    // Reads what decides about the key. Valid until the next look. Digests must not decrease.
    Found look(const Key& key);
    // Inserts the record, or replaces the row that was found. TM_WouldBlock: another transaction
    // kept the row for longer than the bound. Any other result but TM_Ok: one came first; look
    // again then.
    ChangeResult write(const NewRecord& record, const Found& found, WaitBound& bound);
    // That of one key.
    MemoryContext memory() const { return memory_; }
    // Waits for the writer of the row that was found. Returns false when the bound came first.
    bool wait(WaitBound& bound) { return scan_.wait(bound); }

  private:
    bool insert();

    Records records_;
    DigestScan scan_;
    OpenIndexes indexes_;
    TupleTableSlot* row_;
    MemoryContext memory_;
    core::Digest newest_{};
};
static_assert(std::is_trivially_destructible_v<BulkWriter>);

}  // namespace idem::pg
