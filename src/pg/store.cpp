#include "pg/store.hpp"

#include "pg/compat.hpp"
#include "pg/report.hpp"
#include "pg/table.hpp"

namespace idem::pg {
namespace {

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
    columns
};

pg_uuid_t uuid_of(const core::Digest& digest) {
    static_assert(sizeof(pg_uuid_t) == sizeof(core::Digest));
    pg_uuid_t uuid;
    memcpy(uuid.data, digest.data(), digest.size());
    return uuid;
}

// An index scan for one digest under a dirty snapshot, which tells of each hit who is at work on
// it.
class DigestScan {
  public:
    DigestScan(const Records& records, const pg_uuid_t* digest) : records_(records) {
        index_ = records.open_index();
        InitDirtySnapshot(dirty_);
        scan_ = compat::begin_index_scan(records.table(), index_, &dirty_, 1);
        ScanKeyData key;
        ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_UUID_EQ, UUIDPGetDatum(digest));
        index_rescan(scan_, &key, 1, nullptr, 0);
    }
    // As index_getnext_slot(), but most probes find no entry, and need no slot.
    bool next() {
        for (;;) {
            if (!scan_->xs_heap_continue &&
                index_getnext_tid(scan_, ForwardScanDirection) == nullptr)
                return false;
            if (slot_ == nullptr) slot_ = table_slot_create(records_.table(), nullptr);
            if (index_fetch_heap(scan_, slot_)) return true;
        }
    }
    TupleTableSlot* slot() const { return slot_; }
    TransactionId inserting() const { return dirty_.xmin; }
    TransactionId deleting() const { return dirty_.xmax; }
    void end() {
        index_endscan(scan_);
        if (slot_ != nullptr) ExecDropSingleTupleTableSlot(slot_);
        records_.close_index(index_);
    }

  private:
    const Records& records_;
    Relation index_;
    IndexScanDesc scan_;
    TupleTableSlot* slot_ = nullptr;
    SnapshotData dirty_;
};
static_assert(std::is_trivially_destructible_v<DigestScan>);

Datum column(TupleTableSlot* slot, Column which, bool& null) {
    return slot_getattr(slot, which + 1, &null);
}

template <class T>
T* varlena_column(TupleTableSlot* slot, Column which) {
    bool null;
    const Datum value = column(slot, which, null);
    return null ? nullptr : reinterpret_cast<T*>(PG_DETOAST_DATUM_COPY(value));
}

std::optional<std::int32_t> int_column(TupleTableSlot* slot, Column which) {
    bool null;
    const Datum value = column(slot, which, null);
    return null ? std::nullopt : std::optional(DatumGetInt32(value));
}

std::optional<std::int64_t> bigint_column(TupleTableSlot* slot, Column which) {
    bool null;
    const Datum value = column(slot, which, null);
    return null ? std::nullopt : std::optional(DatumGetInt64(value));
}

Record read_record(TupleTableSlot* slot) {
    bool null;
    return {
        .created = DatumGetTimestampTz(column(slot, column_created, null)),
        .expires = DatumGetTimestampTz(column(slot, column_expires, null)),
        .lease_end = bigint_column(slot, column_lease_end),
        .nonce = bigint_column(slot, column_nonce),
        .attempt = DatumGetInt32(column(slot, column_attempt, null)),
        .state = static_cast<core::State>(DatumGetChar(column(slot, column_state, null))),
        .redacted = DatumGetBool(column(slot, column_redacted, null)),
        .fingerprint = varlena_column<bytea>(slot, column_fingerprint),
        .recovery_point = varlena_column<text>(slot, column_recovery_point),
        .recovery_state = varlena_column<Jsonb>(slot, column_recovery_state),
        .status = int_column(slot, column_status),
        .headers = varlena_column<Jsonb>(slot, column_headers),
        .response = varlena_column<Jsonb>(slot, column_response),
        .body = varlena_column<bytea>(slot, column_body),
        .error = varlena_column<Jsonb>(slot, column_error),
    };
}

// The identity that the row carries.
KeyName read_name(TupleTableSlot* slot, const core::Digest& digest) {
    bool null;
    return {DatumGetInt32(column(slot, column_scope, null)),
            view_of(varlena_column<text>(slot, column_tenant)),
            view_of(varlena_column<text>(slot, column_key)), digest};
}

bool is_record_of(TupleTableSlot* slot, const KeyName& name) {
    bool null;
    return DatumGetInt32(column(slot, column_scope, null)) == name.scope_id &&
           view_of(DatumGetTextPP(column(slot, column_key, null))) == name.key &&
           view_of(DatumGetTextPP(column(slot, column_tenant, null))) == name.tenant;
}

bool written_here(TupleTableSlot* slot) {
    bool null;
    const Datum xmin = slot_getsysattr(slot, MinTransactionIdAttributeNumber, &null);
    return TransactionIdIsCurrentTransactionId(DatumGetTransactionId(xmin));
}

bool visible_to_transaction(const Records& records, TupleTableSlot* slot) {
    return !IsolationUsesXactSnapshot() ||
           table_tuple_satisfies_snapshot(records.table(), slot, GetTransactionSnapshot());
}

core::Presence presence(const DigestScan& scan) {
    if (TransactionIdIsValid(scan.inserting())) return core::Presence::inserting;
    if (written_here(scan.slot())) return core::Presence::own;
    if (TransactionIdIsValid(scan.deleting())) return core::Presence::deleting;
    return core::Presence::committed;
}

Row<columns> row_of(const KeyName& name, const pg_uuid_t* digest, const Record& record) {
    Row<columns> row;
    row.set(column_digest, UUIDPGetDatum(digest));
    row.set_time(column_created, record.created);
    row.set_time(column_expires, record.expires);
    row.set_time(column_lease_end, record.lease_end);
    if (record.nonce) row.set(column_nonce, Int64GetDatum(*record.nonce));
    row.set_int(column_scope, name.scope_id);
    row.set_int(column_attempt, record.attempt);
    row.set_int(column_status, record.status);
    row.set(column_state, CharGetDatum(static_cast<char>(record.state)));
    row.set_bool(column_redacted, record.redacted);
    row.set_text(column_tenant, name.tenant);
    row.set_text(column_key, name.key);
    row.set_pointer(column_fingerprint, record.fingerprint);
    row.set_pointer(column_recovery_point, record.recovery_point);
    row.set_pointer(column_recovery_state, record.recovery_state);
    row.set_pointer(column_headers, record.headers);
    row.set_pointer(column_response, record.response);
    row.set_pointer(column_body, record.body);
    row.set_pointer(column_error, record.error);
    return row;
}

// The unique index holds the same key in another row. Waits for whoever is at work on it, as a
// unique index does; returns once ours is the only one, raises 40001 when a live one is there.
void settle_duplicate(const Records& records, const pg_uuid_t* digest, ItemPointer ours) {
    for (;;) {
        TransactionId working = InvalidTransactionId;
        ItemPointerData theirs;
        bool other = false;
        DigestScan scan(records, digest);
        while (!other && scan.next()) {
            other = !ItemPointerEquals(ours, &scan.slot()->tts_tid);
            if (!other) continue;
            theirs = scan.slot()->tts_tid;
            working = TransactionIdIsValid(scan.inserting()) ? scan.inserting() : scan.deleting();
        }
        scan.end();
        if (!other) return;
        if (!TransactionIdIsValid(working))
            report::serialization_failure("The key was completed past the claim that held it.");
        XactLockTableWait(working, records.table(), &theirs, XLTW_InsertIndex);
    }
}

// Whether this record may take the place of that one.
bool outlived(const Record& old, const Record& record) {
    if (old.expires <= GetCurrentTimestamp()) return true;
    return old.state == core::State::in_progress && old.attempt <= record.attempt;
}

// Puts the row in the place of an outlived one. False when that has gone meanwhile.
bool replace(const Records& records, const KeyName& name, const pg_uuid_t* digest,
             const Record& record, TupleTableSlot* slot) {
    const Found old = probe(records, name);
    if (old.presence == core::Presence::absent || old.presence == core::Presence::inserting)
        return false;
    if (!outlived(old.record, record))
        report::serialization_failure("The key was completed past the claim that held it.");
    ItemPointerData tid = old.tid;
    bool new_entries = false;
    switch (compat::update_row(records.table(), &tid, slot, compat::Waiting::yes, new_entries)) {
        case TM_Ok:
            break;
        case TM_Deleted:
            return false;  // by the purger, most likely
        default:
            report::serialization_failure("The key's record was changed concurrently.");
    }
    if (new_entries && add_index_entries(records.table(), slot, true))
        settle_duplicate(records, digest, &slot->tts_tid);
    return true;
}

}  // namespace

Records::Records(LOCKMODE mode, LOCKMODE release)
    : table_(open_table(Table::record, mode)), mode_(mode), release_(release) {}

Relation Records::open_index() const {
    return index_open(compat::primary_key_of(table_), mode_);
}

TimestampTz record_expires(TupleTableSlot* slot) {
    bool null;
    return DatumGetTimestampTz(column(slot, column_expires, null));
}

std::int32_t record_scope(TupleTableSlot* slot) {
    bool null;
    return DatumGetInt32(column(slot, column_scope, null));
}

namespace {

// Looks for the digest's row and hands its slot to identify() before it is taken apart.
template <class Identify>
Found find_row(const Records& records, const core::Digest& digest, Identify identify) {
    Found found;
    const pg_uuid_t uuid = uuid_of(digest);
    DigestScan scan(records, &uuid);
    if (scan.next()) {
        TupleTableSlot* slot = scan.slot();
        identify(slot);
        found.presence = presence(scan);
        found.working = TransactionIdIsValid(scan.inserting()) ? scan.inserting() : scan.deleting();
        found.tid = slot->tts_tid;
        if (found.presence != core::Presence::inserting) {
            found.in_snapshot = visible_to_transaction(records, slot);
            found.record = read_record(slot);
        }
    }
    scan.end();
    return found;
}

}  // namespace

Found probe(const Records& records, const KeyName& name) {
    return find_row(records, name.digest, [&](TupleTableSlot* slot) {
        if (!is_record_of(slot, name)) report::digest_collision();
    });
}

Named probe_digest(const Records& records, const core::Digest& digest) {
    Named named{};
    named.found = find_row(records, digest,
                           [&](TupleTableSlot* slot) { named.name = read_name(slot, digest); });
    return named;
}

void write_record(const Records& records, const KeyName& name, const Record& record, Over over) {
    const pg_uuid_t digest = uuid_of(name.digest);
    const Row<columns> row = row_of(name, &digest, record);
    TupleTableSlot* slot = new_row(records.table(), row.values(), row.nulls());
    const bool replaced = over == Over::outlived && replace(records, name, &digest, record, slot);
    if (!replaced && insert_row(records.table(), slot, true))
        settle_duplicate(records, &digest, &slot->tts_tid);
    ExecDropSingleTupleTableSlot(slot);
    CommandCounterIncrement();
}

bool delete_record(const Records& records, const Found& found) {
    ItemPointerData tid = found.tid;
    const TM_Result result = delete_row(records.table(), &tid, compat::Waiting::yes);
    if (result != TM_Ok && result != TM_Deleted)
        report::serialization_failure("The key's record was changed concurrently.");
    CommandCounterIncrement();
    return result == TM_Ok;
}

}  // namespace idem::pg
