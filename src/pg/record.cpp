#include "pg/record.hpp"

#include "pg/compat.hpp"
#include "pg/document.hpp"
#include "pg/failure.hpp"
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
    column_key_uuid,
    column_request,
    column_extra_attempts,
    columns
};
static_assert(columns == record_columns);

// The number of the table's first column that is one of idem.record's, from 1.
int first_column(TupleDesc table) {
    return has_tenant_column(table) ? 2 : 1;
}

Datum column(TupleTableSlot* slot, Column which, bool& null) {
    return slot_getattr(slot, first_column(slot->tts_tupleDescriptor) + which, &null);
}

template <class T>
T* varlena_column(TupleTableSlot* slot, Column which) {
    bool null;
    const Datum value = column(slot, which, null);
    return null ? nullptr : reinterpret_cast<T*>(PG_DETOAST_DATUM_COPY(value));
}

// A copy of the value as it is stored, compressed or out of line.
varlena* stored_column(TupleTableSlot* slot, Column which) {
    bool null;
    const Datum value = column(slot, which, null);
    if (null) return nullptr;
    const void* stored = DatumGetPointer(value);
    const Size size = VARSIZE_ANY(stored);
    return static_cast<varlena*>(memcpy(palloc(size), stored, size));
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

std::int32_t read_attempt(TupleTableSlot* slot) {
    return int_column(slot, column_attempt).value_or(core::first_attempt);
}

std::int32_t read_extra_attempts(TupleTableSlot* slot) {
    return int_column(slot, column_extra_attempts).value_or(0);
}

// What decides about a claim, without the answer.
Record read_claim(TupleTableSlot* slot) {
    bool null;
    Record record{};
    record.created = DatumGetTimestampTz(column(slot, column_created, null));
    record.expires = DatumGetTimestampTz(column(slot, column_expires, null));
    record.lease_end = bigint_column(slot, column_lease_end);
    record.nonce = bigint_column(slot, column_nonce);
    record.attempt = read_attempt(slot);
    record.state = static_cast<core::State>(DatumGetChar(column(slot, column_state, null)));
    record.redacted = DatumGetBool(column(slot, column_redacted, null)) && !null;
    record.fingerprint = varlena_column<bytea>(slot, column_fingerprint);
    if (record.state == core::State::in_progress) record.extra_attempts = read_extra_attempts(slot);
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
    record.request = stored_column(slot, column_request);
    return record;
}

// A finished record as far as erased() keeps it, so that an answer out of line is not read.
Record read_outcome(TupleTableSlot* slot) {
    Record record = read_claim(slot);
    record.status = int_column(slot, column_status);
    record.error = varlena_column<Jsonb>(slot, column_error);
    return record;
}

bool has_value(TupleTableSlot* slot, Column which) {
    bool null;
    (void)column(slot, which, null);
    return !null;
}

core::Digest digest_of(const pg_uuid_t* uuid) {
    core::Digest digest;
    static_assert(sizeof digest == sizeof uuid->data);
    memcpy(digest.data(), uuid->data, digest.size());
    return digest;
}

// The name of the key whose row it is.
KeyName read_name(TupleTableSlot* slot, const core::Digest& digest) {
    bool null;
    return {DatumGetInt32(column(slot, column_scope, null)),
            view_of(varlena_column<text>(slot, column_tenant)),
            view_of(text_of(RowKey(slot).view())), digest, as_given(slot->tts_tableOid)};
}

bool is_record_of(TupleTableSlot* slot, const KeyName& name) {
    bool null;
    return DatumGetInt32(column(slot, column_scope, null)) == name.scope_id &&
           RowKey(slot).view() == name.key &&
           view_of(DatumGetTextPP(column(slot, column_tenant, null))) == name.tenant;
}

Datum new_uuid(const core::Uuid& bytes) {
    auto* uuid = static_cast<pg_uuid_t*>(palloc(sizeof(pg_uuid_t)));
    *uuid = uuid_of(bytes);
    return UUIDPGetDatum(uuid);
}

Row<columns> row_of(const KeyName& name, const Record& record) {
    Row<columns> row;
    row.set(column_digest, new_uuid(name.digest));
    row.set_time(column_created, record.created);
    row.set_time(column_expires, record.expires);
    row.set_time(column_lease_end, record.lease_end);
    if (record.nonce) row.set(column_nonce, Int64GetDatum(*record.nonce));
    row.set_int(column_scope, name.scope_id);
    if (record.attempt != core::first_attempt) row.set_int(column_attempt, record.attempt);
    row.set_int(column_status, record.status);
    row.set(column_state, CharGetDatum(static_cast<char>(record.state)));
    if (record.redacted) row.set_bool(column_redacted, true);
    row.set_text(column_tenant, name.tenant);
    if (const auto uuid = core::canonical_uuid(name.key))
        row.set(column_key_uuid, new_uuid(*uuid));
    else
        row.set_text(column_key, name.key);
    row.set_pointer(column_fingerprint, record.fingerprint);
    row.set_pointer(column_recovery_point, record.recovery_point);
    row.set_pointer(column_recovery_state, record.recovery_state);
    row.set_pointer(column_headers, record.headers);
    row.set_pointer(column_response, record.response);
    row.set_pointer(column_body, record.body);
    row.set_pointer(column_error, record.error);
    row.set_pointer(column_request, record.request);
    if (record.extra_attempts != 0) row.set_int(column_extra_attempts, record.extra_attempts);
    Assert(row.nulls()[column_key] != row.nulls()[column_key_uuid]);
    return row;
}

// Deletes a row that this command has inserted.
void take_back(const Records& records, ItemPointer ours) {
    CommandCounterIncrement();
    const TM_Result result = compat::delete_row(records.table(), ours, compat::Waiting::no);
    if (result != TM_Ok) elog(ERROR, "could not take back a row: result %d", result);
}

// Another row has, or may come to have, the digest of ours. Waits for its writer as a unique index
// does, but within the bound. Returns once ours is the only row; raises 40001 when another live row
// stays.
WriteResult wait_out_duplicates(const Records& records, const core::Digest& digest,
                                ItemPointer ours, const WaitBound& bound) {
    WriteResult result{WriteOutcome::written, InvalidTransactionId};
    DigestScan scan(records);
    while (result.outcome == WriteOutcome::written) {
        scan.seek(digest);
        bool other = false;
        while (!other && scan.next()) other = !ItemPointerEquals(ours, &scan.slot()->tts_tid);
        if (!other) break;
        const RowWriter writer = scan.writer();
        if (!writer.valid())
            report::serialization_failure(
                "Another transaction wrote the key's record without the key lock.");
        if (!scan.wait(bound)) result = {WriteOutcome::blocked, writer.xid};
    }
    scan.end();
    return result;
}

void add_tenant_context(void* table) {
    errcontext("tenant as column \"%s\" of the record table",
               NameStr(TupleDescAttr(static_cast<TupleDesc>(table), 0)->attname));
}

// The tenant as a value of its column. Raises the error of the type's input function.
Datum tenant_value(TupleDesc table, std::string_view tenant) {
    Assert(has_tenant_column(table));
    const FormData_pg_attribute* column = TupleDescAttr(table, 0);
    Oid input;
    Oid parameter;
    getTypeInputInfo(column->atttypid, &input, &parameter);
    ErrorContextCallback context{error_context_stack, add_tenant_context, table};
    error_context_stack = &context;
    const Datum value = OidInputFunctionCall(input, pnstrdup(tenant.data(), tenant.size()),
                                             parameter, column->atttypmod);
    error_context_stack = context.previous;
    return value;
}

// Fills a slot of a record table whose first column is the tenant.
void fill_row_after_tenant(TupleTableSlot* slot, Datum tenant, const Row<columns>& row) {
    std::array<Datum, 1 + columns> values{tenant};
    std::array<bool, 1 + columns> nulls{false};
    std::copy(row.values().begin(), row.values().end(), values.begin() + 1);
    std::copy(row.nulls().begin(), row.nulls().end(), nulls.begin() + 1);
    fill_row(slot, values, nulls);
}

// The tenant column of a stored row, palloc'd; nothing if the table has none.
std::optional<Datum> stored_tenant(TupleTableSlot* slot) {
    const TupleDesc table = slot->tts_tupleDescriptor;
    if (!has_tenant_column(table)) return std::nullopt;
    bool null;
    const Datum value = slot_getattr(slot, 1, &null);
    if (null) return std::nullopt;
    const FormData_pg_attribute* type = TupleDescAttr(table, 0);
    return datumCopy(value, type->attbyval, type->attlen);
}

// Fills a slot of a record table. What it points to is palloc'd, or belongs to the record. A row
// that replaces another keeps the value of its tenant column: the text is read but once.
void store_row(TupleTableSlot* slot, const KeyName& name, const Record& record,
               const std::optional<Datum>& tenant) {
    Assert(record.attempt >= 1 && name.scope_id > 0);
    // A lease has an end; what is finished has no recovery point.
    [[maybe_unused]] const bool in_progress = record.state == core::State::in_progress;
    Assert(record.lease_end || !in_progress);
    Assert(in_progress || record.recovery_point == nullptr);
    Assert(record.extra_attempts >= 0);
    const TupleDesc table = slot->tts_tupleDescriptor;
    const Row<columns> row = row_of(name, record);
    if (has_tenant_column(table))
        fill_row_after_tenant(slot, tenant ? *tenant : tenant_value(table, name.tenant), row);
    else
        fill_row(slot, row.values(), row.nulls());
}

// Replaces the row at tid. Raises 40001 when another live row turns out to hold the key.
ChangeResult replace_row(const Records& records, const KeyName& name, ItemPointerData tid,
                         TupleTableSlot* slot, const WaitBound& bound) {
    const auto on_duplicate = [&] {
        if (wait_out_duplicates(records, name.digest, &slot->tts_tid, bound).outcome ==
            WriteOutcome::blocked)
            report::serialization_failure(
                "Another transaction changed the key's record at the same time.");
        return true;
    };
    return change_row(records.table(), tid, RowChange::update, bound,
                      [&] { return update_row(records.table(), tid, slot, on_duplicate); });
}

// Whether the new record may replace the old one.
bool outlived(const Record& old, const Record& record) {
    if (old.expires <= GetCurrentTimestamp()) return true;
    return old.state == core::State::in_progress && old.attempt <= record.attempt;
}

// Replaces the row that was found, unless it has gone meanwhile.
WriteResult replace(const Records& records, const KeyName& name, const Found& old,
                    TupleTableSlot* slot, const WaitBound& bound) {
    const ChangeResult changed = replace_row(records, name, old.tid, slot, bound);
    switch (changed.result) {
        case TM_Ok:
            return {WriteOutcome::written, InvalidTransactionId};
        case TM_Deleted:  // most likely by the purge worker
            return {WriteOutcome::gone, InvalidTransactionId};
        case TM_WouldBlock:
            return {WriteOutcome::blocked, changed.in_the_way};
        default:
            report::serialization_failure(
                "Another transaction changed the key's record at the same time.");
    }
}

WriteResult insert(const Records& records, const KeyName& name, TupleTableSlot* slot,
                   const WaitBound& bound) {
    WriteResult result{WriteOutcome::written, InvalidTransactionId};
    const auto on_duplicate = [&] {
        result = wait_out_duplicates(records, name.digest, &slot->tts_tid, bound);
        return result.outcome == WriteOutcome::written;
    };
    if (!insert_row(records.table(), slot, on_duplicate)) take_back(records, &slot->tts_tid);
    return result;
}

bool is_row(const Found& found) {
    return found.presence != core::Presence::absent && found.presence != core::Presence::inserting;
}

Found read_hit(const DigestScan& scan, Contents contents) {
    Found found;
    TupleTableSlot* slot = scan.slot();
    found.presence = scan.presence();
    Assert(ItemPointerIsValid(&slot->tts_tid));
    found.writer = scan.writer();
    found.tid = slot->tts_tid;
    if (found.presence == core::Presence::inserting) return found;
    found.in_snapshot = scan.in_snapshot();
    found.replaced = found.presence == core::Presence::deleting && scan.is_replaced();
    found.record = contents == Contents::all ? read_record(slot) : read_claim(slot);
    found.tenant_column = stored_tenant(slot);
    return found;
}

}  // namespace

Records Records::open_elsewhere(Oid table, KeyedTable (*open_keyed)(Oid, Open)) {
    require_record_table(table);
    const Records records = open_keyed(table, try_relation_open);
    require_record_table(table, records.table());
    return records;
}

void Records::check_tenant(std::string_view tenant) const {
    if (has_tenant_column(RelationGetDescr(table())))
        (void)tenant_value(RelationGetDescr(table()), tenant);
}

bool has_record_layout() {
    return get_attnum(table_oid(Table::record), "extra_attempts") == column_extra_attempts + 1;
}

Jsonb* request_of(const Record& record) {
    return record.request == nullptr ? nullptr : DatumGetJsonbP(PointerGetDatum(record.request));
}

void free_contents(const Record& record) {
    const std::array<const void*, 8> copies = {
        record.fingerprint, record.recovery_point, record.recovery_state, record.headers,
        record.response,    record.body,           record.error,          record.request};
    for (const void* copy : copies)
        if (copy != nullptr) pfree(const_cast<void*>(copy));
}

Record erased(const Record& record) {
    Record rest = record;
    rest.recovery_state = nullptr;
    rest.request = nullptr;
    rest.headers = nullptr;
    rest.response = nullptr;
    rest.body = nullptr;
    rest.error = sqlstate_only(record.error);
    const bool finished = record.state != core::State::in_progress;
    if (finished && (record.headers != nullptr || record.response != nullptr ||
                     record.body != nullptr || record.error != rest.error))
        rest.redacted = true;
    return rest;
}

std::optional<TimestampTz> completed_at(const Record& record) {
    if (record.state == core::State::in_progress) return std::nullopt;
    return core::answered_at(record.created, record.lease_end);
}

void hide_outlived_answer(Record& record, std::optional<std::int64_t> answer_ttl, TimestampTz now) {
    const auto answered = completed_at(record);
    if (answered && core::is_answer_outlived(*answered, answer_ttl, now)) record = erased(record);
}

Oid unfinished_index_of(Relation records) {
    const int first = first_column(RelationGetDescr(records));
    return find_partial_index(records, static_cast<AttrNumber>(first + column_scope),
                              {static_cast<AttrNumber>(first + column_state),
                               static_cast<char>(core::State::in_progress)});
}

RowKey::RowKey(TupleTableSlot* slot) {
    bool null;
    const Datum key = column(slot, column_key, null);
    is_uuid_ = null;
    if (!null) {
        text_ = view_of(DatumGetTextPP(key));
        return;
    }
    const Datum uuid = column(slot, column_key_uuid, null);
    if (null) elog(ERROR, "a row of table idem.record has no key");
    core::Uuid bytes;
    memcpy(bytes.data(), DatumGetUUIDP(uuid)->data, bytes.size());
    uuid_ = core::uuid_text(bytes);
}

TimestampTz record_expires(TupleTableSlot* slot) {
    bool null;
    return DatumGetTimestampTz(column(slot, column_expires, null));
}

std::int32_t record_scope(TupleTableSlot* slot) {
    bool null;
    return DatumGetInt32(column(slot, column_scope, null));
}

std::string_view record_tenant(TupleTableSlot* slot) {
    bool null;
    return view_of(DatumGetTextPP(column(slot, column_tenant, null)));
}

RecordHead record_head(TupleTableSlot* slot) {
    bool null;
    return {
        .created = DatumGetTimestampTz(column(slot, column_created, null)),
        .scope_id = record_scope(slot),
        .attempt = read_attempt(slot),
        .tenant = record_tenant(slot),
        .key = RowKey(slot),
    };
}

namespace {

// Whether replays of a finished record would lose something by erased().
bool has_answer(TupleTableSlot* slot) {
    if (has_value(slot, column_headers) || has_value(slot, column_response) ||
        has_value(slot, column_body))
        return true;
    auto* error = varlena_column<Jsonb>(slot, column_error);
    return error != nullptr && sqlstate_only(error) != error;
}

struct Places {
    RecordPlace* places;
    std::size_t size;
    std::size_t capacity;

    void add(const RecordPlace& place) {
        if (size == capacity) {
            capacity *= 2;
            places =
                static_cast<RecordPlace*>(repalloc_huge(places, capacity * sizeof(RecordPlace)));
        }
        places[size++] = place;
    }
};

}  // namespace

std::span<const RecordPlace> records_of_tenant(const List* tables,
                                               std::optional<std::int32_t> scope,
                                               std::string_view tenant) {
    Places found{nullptr, 0, 1024};
    found.places = static_cast<RecordPlace*>(palloc(found.capacity * sizeof(RecordPlace)));
    for (int i = 0; i < list_length(tables); ++i) {
        Relation table = try_open_records(list_nth_oid(tables, i), AccessShareLock);
        if (table == nullptr) continue;
        scan_committed_rows(table, [&](TupleTableSlot* slot) {
            if ((scope && record_scope(slot) != *scope) || record_tenant(slot) != tenant) return;
            bool null;
            found.add({digest_of(DatumGetUUIDP(column(slot, column_digest, null))),
                       RelationGetRelid(table)});
        });
        table_close(table, AccessShareLock);
    }
    std::sort(found.places, found.places + found.size);
    return {found.places, found.size};
}

Found found_by(const DigestScan& scan, const KeyName& name, Contents contents) {
    if (!is_record_of(scan.slot(), name)) report::digest_collision();
    return read_hit(scan, contents);
}

Found probe(const Records& records, const KeyName& name, Contents contents) {
    DigestScan scan(records);
    const Found found = scan.find(name.digest) ? found_by(scan, name, contents) : Found{};
    scan.end();
    return found;
}

std::optional<FoundKey> probe_digest(const Records& records, const core::Digest& digest) {
    std::optional<FoundKey> key;
    trivial<std::optional<FoundKey>>();
    DigestScan scan(records);
    if (scan.find(digest) && scan.presence() != core::Presence::inserting)
        key = {read_name(scan.slot(), digest), read_hit(scan, Contents::all)};
    scan.end();
    return key;
}

// An index that REINDEX has made is as good as the one that it replaces, so the index is looked up
// for each search.
UnfinishedSearch::UnfinishedSearch(const Records& records, std::int32_t scope_id) {
    ScanKeyData key;
    const int first = first_column(RelationGetDescr(records.table()));
    ScanKeyInit(&key, static_cast<AttrNumber>(first + column_scope), BTEqualStrategyNumber,
                F_INT4EQ, Int32GetDatum(scope_id));
    const Oid index = unfinished_index_of(records.table());
    scan_ = systable_beginscan(records.table(), index, OidIsValid(index), SnapshotSelf, 1, &key);
}

UnfinishedSearch::UnfinishedSearch(Relation records, Snapshot snapshot) {
    Oid index = unfinished_index_of(records);
    if (OidIsValid(index) && !serves_old_snapshots(index)) index = InvalidOid;
    scan_ = systable_beginscan(records, index, OidIsValid(index), snapshot, 0, nullptr);
}

void UnfinishedSearch::end() {
    systable_endscan(scan_);
}

TupleTableSlot* UnfinishedSearch::next_row() {
    while (HeapTupleIsValid(systable_getnext(scan_))) {
        CHECK_FOR_INTERRUPTS();
        bool null;
        const Datum state = column(scan_->slot, column_state, null);
        if (static_cast<core::State>(DatumGetChar(state)) == core::State::in_progress)
            return scan_->slot;
    }
    return nullptr;
}

std::optional<Unfinished> UnfinishedSearch::next() {
    TupleTableSlot* slot = next_row();
    if (slot == nullptr) return std::nullopt;
    bool null;
    return Unfinished{
        .digest = digest_of(DatumGetUUIDP(column(slot, column_digest, null))),
        .expires = record_expires(slot),
        .lease_end = bigint_column(slot, column_lease_end).value_or(0),
        .attempt = read_attempt(slot),
        .extra_attempts = read_extra_attempts(slot),
        .tenant = view_of(DatumGetTextPP(column(slot, column_tenant, null))),
    };
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

WriteResult write_record(const Records& records, const KeyName& name, const Record& record,
                         Predecessor predecessor, const WaitBound& bound) {
    if (predecessor == Predecessor::none) return write_over(records, name, record, Found{}, bound);
    const Found old = probe(records, name, Contents::claim);
    if (is_row(old) && !outlived(old.record, record))
        report::serialization_failure(
            "Another transaction wrote the key's record without the key lock.");
    return write_over(records, name, record, old, bound);
}

WriteResult write_over(const Records& records, const KeyName& name, const Record& record,
                       const Found& old, const WaitBound& bound) {
    Assert(KeyLock(name.digest).is_held());
    Assert(!is_row(old) || ActiveSnapshotSet());  // keeps VACUUM from the row's place
    TupleTableSlot* slot = table_slot_create(records.table(), nullptr);
    store_row(slot, name, record, old.tenant_column);
    WriteResult result{WriteOutcome::gone, InvalidTransactionId};
    if (is_row(old)) result = replace(records, name, old, slot, bound);
    if (result.outcome == WriteOutcome::gone) result = insert(records, name, slot, bound);
    Assert(result.outcome != WriteOutcome::gone);
    ExecDropSingleTupleTableSlot(slot);
    CommandCounterIncrement();
    return result;
}

WriteResult delete_record(const Records& records, const Found& found, const WaitBound& bound) {
    Assert(found.presence != core::Presence::absent);
    return delete_at(records, found.tid, bound,
                     "Another transaction changed the key's record at the same time.");
}

WriteResult delete_at(const KeyedTable& table, ItemPointerData row, const WaitBound& bound,
                      const char* replaced) {
    const ChangeResult changed =
        change_row(table.table(), row, RowChange::deletion, bound,
                   [relation = table.table(), tid = row]() mutable {
                       return compat::delete_row(relation, &tid, compat::Waiting::yes);
                   });
    CommandCounterIncrement();
    switch (changed.result) {
        case TM_Ok:
            return {WriteOutcome::written, InvalidTransactionId};
        case TM_Deleted:
            return {WriteOutcome::gone, InvalidTransactionId};
        case TM_WouldBlock:
            return {WriteOutcome::blocked, changed.in_the_way};
        default:
            report::serialization_failure(replaced);
    }
}

bool has_outlived_answer(TupleTableSlot* slot, std::int64_t answer_ttl, TimestampTz now) {
    bool null;
    const Datum state = column(slot, column_state, null);
    if (DatumGetChar(state) == static_cast<char>(core::State::in_progress)) return false;
    const TimestampTz created = DatumGetTimestampTz(column(slot, column_created, null));
    const TimestampTz answered = core::answered_at(created, bigint_column(slot, column_lease_end));
    return core::is_answer_outlived(answered, answer_ttl, now) &&
           (has_answer(slot) || has_value(slot, column_request));
}

// The row is locked first, because an update waits for a transaction that has locked it.
bool try_erase(Relation records, TupleTableSlot* slot) {
    const ItemPointerData tid = slot->tts_tid;
    if (try_lock_row(records, tid, RowChange::update) != TM_Ok) return false;
    core::Digest digest;
    bool null;
    memcpy(digest.data(), DatumGetUUIDP(column(slot, column_digest, null))->data, digest.size());
    Record rest = erased(read_outcome(slot));
    rest.redacted = rest.redacted || has_answer(slot);
    TupleTableSlot* row = table_slot_create(records, nullptr);
    store_row(row, read_name(slot, digest), rest, stored_tenant(slot));
    const auto on_duplicate = []() -> bool {
        report::serialization_failure(
            "Another transaction wrote the key's record without the key lock.");
    };
    const TM_Result result = update_row(records, tid, row, on_duplicate);
    ExecDropSingleTupleTableSlot(row);
    return result == TM_Ok;
}

BulkWriter::BulkWriter(const Records& records)
    : records_(records),
      scan_(records),
      indexes_(records.table(), OpenIndexes::Before::digest),
      row_(table_slot_create(records.table(), nullptr)),
      memory_(AllocSetContextCreate(CurrentMemoryContext, "idem key", ALLOCSET_SMALL_SIZES)) {}

void BulkWriter::end() {
    indexes_.close();
    MemoryContextDelete(memory_);
    ExecDropSingleTupleTableSlot(row_);
    scan_.end();
}

// What the scan allocates serves more than one key, so only the row is read in this key's memory.
Found BulkWriter::look(const KeyName& name) {
    Assert(newest_ <= name.digest);  // else two calls could wait for each other
    newest_ = name.digest;
    MemoryContextReset(memory_);
    if (!scan_.find(name.digest)) return {};
    const MemoryContext before = MemoryContextSwitchTo(memory_);
    const Found found = found_by(scan_, name, Contents::claim);
    MemoryContextSwitchTo(before);
    return found;
}

bool BulkWriter::write(const KeyName& name, const Record& record, const Found& found) {
    const MemoryContext before = MemoryContextSwitchTo(memory_);
    store_row(row_, name, record, found.tenant_column);
    const bool written = found.presence == core::Presence::absent ? insert() : replace(name, found);
    ExecClearTuple(row_);
    MemoryContextSwitchTo(before);
    return written;
}

// Whether the key is taken is known when its entry is in the index. Until then other callers cannot
// rely on the row and wait for the lock that the token names, even those that should not wait. So
// nothing under that lock may wait.
bool BulkWriter::insert() {
    const Relation table = records_.table();
    const TransactionId xid = GetCurrentTransactionId();
    check_partition(table, row_);
    const UnneededIndexes unneeded = unneeded_indexes(table, row_);
    const std::uint32_t token = SpeculativeInsertionLockAcquire(xid);
    table_tuple_insert_speculative(table, row_, GetCurrentCommandId(true), 0, nullptr, token);
    const bool alone = indexes_.claim_digest(row_);
    table_tuple_complete_speculative(table, row_, token, alone);
    SpeculativeInsertionLockRelease(xid);
    if (alone) indexes_.add_other_entries(row_, IndexEntries::all, unneeded);
    return alone;
}

bool BulkWriter::replace(const KeyName& name, const Found& found) {
    switch (replace_row(records_, name, found.tid, row_, WaitBound::none()).result) {
        case TM_Ok:
            return true;
        case TM_Updated:
        case TM_Deleted:
            return false;
        default:
            report::serialization_failure(
                "Another transaction changed the key's record at the same time.");
    }
}

}  // namespace idem::pg
