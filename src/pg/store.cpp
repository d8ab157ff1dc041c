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

// What decides about a claim, without what it is answered with.
Record read_claim(TupleTableSlot* slot) {
    bool null;
    Record record{};
    record.created = DatumGetTimestampTz(column(slot, column_created, null));
    record.expires = DatumGetTimestampTz(column(slot, column_expires, null));
    record.lease_end = bigint_column(slot, column_lease_end);
    record.nonce = bigint_column(slot, column_nonce);
    record.attempt = DatumGetInt32(column(slot, column_attempt, null));
    record.state = static_cast<core::State>(DatumGetChar(column(slot, column_state, null)));
    record.redacted = DatumGetBool(column(slot, column_redacted, null));
    record.fingerprint = varlena_column<bytea>(slot, column_fingerprint);
    return record;
}

Record read_record(TupleTableSlot* slot) {
    Record record = read_claim(slot);
    record.recovery_point = varlena_column<text>(slot, column_recovery_point);
    record.recovery_state = varlena_column<Jsonb>(slot, column_recovery_state);
    record.status = int_column(slot, column_status);
    record.headers = varlena_column<Jsonb>(slot, column_headers);
    record.response = varlena_column<Jsonb>(slot, column_response);
    record.body = varlena_column<bytea>(slot, column_body);
    record.error = varlena_column<Jsonb>(slot, column_error);
    return record;
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

// Of a row that this command has inserted.
void take_back(const Records& records, ItemPointer ours) {
    CommandCounterIncrement();
    const TM_Result result = compat::delete_row(records.table(), ours, compat::Waiting::no);
    if (result != TM_Ok) elog(ERROR, "could not take back a row: result %d", result);
}

// Another row has, or may come to have, the digest of ours. Waits for whoever is at work on it, as
// a unique index does, but within the bound; returns once ours is the only one, raises 40001 when a
// live one is there.
Writing settle_duplicate(const Records& records, const core::Digest& digest, ItemPointer ours,
                         const WaitBound& bound) {
    Writing result{Written::yes, InvalidTransactionId};
    DigestScan scan(records);
    while (result.written == Written::yes) {
        scan.seek(digest);
        bool other = false;
        while (!other && scan.next()) other = !ItemPointerEquals(ours, &scan.slot()->tts_tid);
        if (!other) break;
        const Work work = scan.working();
        if (!work.valid())
            report::serialization_failure(
                "Another transaction wrote the key's record without the key lock.");
        if (!scan.wait(bound)) result = {Written::no, work.xid};
    }
    scan.end();
    return result;
}

// Whether this record may take the place of that one.
bool outlived(const Record& old, const Record& record) {
    if (old.expires <= GetCurrentTimestamp()) return true;
    return old.state == core::State::in_progress && old.attempt <= record.attempt;
}

// Puts the row in the place of an outlived one, unless that has gone meanwhile.
Writing replace(const Records& records, const KeyName& name, const Record& record,
                TupleTableSlot* slot, const WaitBound& bound) {
    const Found old = probe(records, name);
    if (old.presence == core::Presence::absent || old.presence == core::Presence::inserting)
        return {Written::gone, InvalidTransactionId};
    if (!outlived(old.record, record))
        report::serialization_failure(
            "Another transaction wrote the key's record without the key lock.");
    const Changed changed = replace_row(records, name, old.tid, slot, bound);
    switch (changed.result) {
        case TM_Ok:
            return {Written::yes, InvalidTransactionId};
        case TM_Deleted:  // by the purger, most likely
            return {Written::gone, InvalidTransactionId};
        case TM_WouldBlock:
            return {Written::no, changed.in_the_way};
        default:
            report::serialization_failure(
                "Another transaction changed the key's record at the same time.");
    }
}

Writing insert(const Records& records, const KeyName& name, TupleTableSlot* slot,
               const WaitBound& bound) {
    Writing writing{Written::yes, InvalidTransactionId};
    const auto settle = [&] {
        writing = settle_duplicate(records, name.digest, &slot->tts_tid, bound);
        return writing.written == Written::yes;
    };
    if (!insert_row(records.table(), slot, settle)) take_back(records, &slot->tts_tid);
    return writing;
}

}  // namespace

bool has_record_layout() {
    const Oid table = table_oid(Table::record);
    return get_attnum(table, "expires") == column_expires + 1 &&
           get_attnum(table, "scope") == column_scope + 1;
}

TimestampTz record_expires(TupleTableSlot* slot) {
    bool null;
    return DatumGetTimestampTz(column(slot, column_expires, null));
}

std::int32_t record_scope(TupleTableSlot* slot) {
    bool null;
    return DatumGetInt32(column(slot, column_scope, null));
}

Glance glance(TupleTableSlot* slot) {
    bool null;
    Glance seen{
        .created = DatumGetTimestampTz(column(slot, column_created, null)),
        .expires = record_expires(slot),
        .lease_end = bigint_column(slot, column_lease_end),
        .released = !bigint_column(slot, column_nonce),
        .scope_id = record_scope(slot),
        .attempt = DatumGetInt32(column(slot, column_attempt, null)),
        .state = static_cast<core::State>(DatumGetChar(column(slot, column_state, null))),
        .tenant = view_of(DatumGetTextPP(column(slot, column_tenant, null))),
        .key = view_of(DatumGetTextPP(column(slot, column_key, null))),
        .answer_bytes = 0,
    };
    for (const Column which : {column_headers, column_response, column_body, column_error}) {
        const Datum value = column(slot, which, null);
        if (!null) seen.answer_bytes += static_cast<std::int64_t>(toast_datum_size(value));
    }
    return seen;
}

namespace {

Found read_hit(const DigestScan& scan, Contents contents) {
    Found found;
    TupleTableSlot* slot = scan.slot();
    found.presence = scan.presence();
    found.working = scan.working();
    found.tid = slot->tts_tid;
    if (found.presence == core::Presence::inserting) return found;
    found.in_snapshot = scan.in_snapshot();
    found.record = contents == Contents::all ? read_record(slot) : read_claim(slot);
    return found;
}

}  // namespace

Found found_by(const DigestScan& scan, const KeyName& name, Contents contents) {
    if (!is_record_of(scan.slot(), name)) report::digest_collision();
    return read_hit(scan, contents);
}

Found probe(const Records& records, const KeyName& name) {
    DigestScan scan(records);
    const Found found = scan.find(name.digest) ? found_by(scan, name, Contents::all) : Found{};
    scan.end();
    return found;
}

std::optional<KeyName> name_behind(const Records& records, const core::Digest& digest) {
    std::optional<KeyName> name;
    trivial<std::optional<KeyName>>();
    DigestScan scan(records);
    if (scan.find(digest) && scan.presence() != core::Presence::inserting)
        name = read_name(scan.slot(), digest);
    scan.end();
    return name;
}

void store_row(TupleTableSlot* slot, const KeyName& name, const Record& record) {
    auto* digest = static_cast<pg_uuid_t*>(palloc(sizeof(pg_uuid_t)));
    *digest = uuid_of(name.digest);
    const Row<columns> row = row_of(name, digest, record);
    fill_row(slot, row.values(), row.nulls());
}

Changed replace_row(const Records& records, const KeyName& name, ItemPointerData tid,
                    TupleTableSlot* slot, const WaitBound& bound) {
    const auto settle = [&] {
        if (settle_duplicate(records, name.digest, &slot->tts_tid, bound).written == Written::no)
            report::serialization_failure(
                "Another transaction changed the key's record at the same time.");
        return true;
    };
    return change_row(records.table(), tid, RowChange::update, bound, [&] {
        return update_row(records.table(), tid, slot, compat::Waiting::yes, settle);
    });
}

Writing write_record(const Records& records, const KeyName& name, const Record& record, Over over,
                     const WaitBound& bound) {
    TupleTableSlot* slot = table_slot_create(records.table(), nullptr);
    store_row(slot, name, record);
    Writing writing{Written::gone, InvalidTransactionId};
    if (over == Over::outlived) writing = replace(records, name, record, slot, bound);
    if (writing.written == Written::gone) writing = insert(records, name, slot, bound);
    Assert(writing.written != Written::gone);
    ExecDropSingleTupleTableSlot(slot);
    CommandCounterIncrement();
    return writing;
}

Writing delete_record(const Records& records, const Found& found, const WaitBound& bound) {
    const Changed changed =
        change_row(records.table(), found.tid, RowChange::deletion, bound,
                   [table = records.table(), tid = found.tid]() mutable {
                       return compat::delete_row(table, &tid, compat::Waiting::yes);
                   });
    CommandCounterIncrement();
    switch (changed.result) {
        case TM_Ok:
            return {Written::yes, InvalidTransactionId};
        case TM_Deleted:
            return {Written::gone, InvalidTransactionId};
        case TM_WouldBlock:
            return {Written::no, changed.in_the_way};
        default:
            report::serialization_failure(
                "Another transaction changed the key's record at the same time.");
    }
}

}  // namespace idem::pg
