#include "pg/record.hpp"

#include "pg/compat.hpp"
#include "pg/document.hpp"
#include "pg/failure.hpp"
#include "pg/report.hpp"
#include "pg/table.hpp"

namespace idem::pg {
namespace {

using namespace record_row;

bool is_record_of(const RecordRow& row, const KeyName& name) {
    return row.scope_id() == name.scope_id && row.key().view() == name.key &&
           row.tenant() == name.tenant;
}

[[noreturn]] bool refuse_bypass() {
    report::serialization_failure(
        "Another transaction wrote the key's record without the key lock.");
}

constexpr const char* changed_meanwhile =
    "Another transaction changed the key's record at the same time.";

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
        if (!writer.valid()) refuse_bypass();
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
            report::serialization_failure(changed_meanwhile);
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

// Raises 40001 with the detail when another transaction has replaced the row.
WriteResult result_of(const ChangeResult& changed, const char* replaced) {
    switch (changed.result) {
        case TM_Ok:
            return {WriteOutcome::written, InvalidTransactionId};
        case TM_Deleted:  // most likely by the purge worker
            return {WriteOutcome::gone, InvalidTransactionId};
        case TM_WouldBlock:
            return {WriteOutcome::blocked, changed.in_the_way};
        default:
            report::serialization_failure(replaced);
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
    const TupleTableSlot* slot = scan.slot();
    found.presence = scan.presence();
    Assert(ItemPointerIsValid(&slot->tts_tid));
    found.writer = scan.writer();
    found.tid = slot->tts_tid;
    if (found.presence == core::Presence::inserting) return found;
    found.in_snapshot = scan.in_snapshot();
    found.replaced = found.presence == core::Presence::deleting && scan.is_replaced();
    const RecordRow row(scan.slot());
    found.record = row.read(contents);
    found.tenant_column = row.tenant_column();
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

core::Digest RecordRow::digest() const {
    core::Digest digest;
    memcpy(digest.data(), DatumGetUUIDP(*column(column_digest))->data, digest.size());
    return digest;
}

RowKey RecordRow::key() const {
    if (const auto key = column(column_key)) return RowKey(view_of(DatumGetTextPP(*key)));
    const auto uuid = column(column_key_uuid);
    if (!uuid) elog(ERROR, "a row of table idem.record has no key");
    core::Uuid bytes;
    memcpy(bytes.data(), DatumGetUUIDP(*uuid)->data, bytes.size());
    return RowKey(bytes);
}

bool RecordRow::has_answer() const {
    if (column(column_headers) || column(column_response) || column(column_body)) return true;
    auto* error = copy<Jsonb>(column_error);
    return error != nullptr && sqlstate_only(error) != error;
}

KeyName RecordRow::name() const {
    return {scope_id(), view_of(copy<text>(column_tenant)), view_of(text_of(key().view())),
            digest(), as_given(slot_->tts_tableOid)};
}

Record RecordRow::read(Contents contents) const {
    Record record{};
    record.created = created();
    record.expires = expires();
    record.lease_end = lease_end();
    record.nonce = bigint(column_nonce);
    record.attempt = attempt();
    record.state = state();
    record.redacted = DatumGetBool(column(column_redacted).value_or(Datum{0}));
    record.fingerprint = copy<bytea>(column_fingerprint);
    if (record.state == core::State::in_progress) record.extra_attempts = extra_attempts();
    if (contents == Contents::claim) return record;
    record.status = integer(column_status);
    record.error = copy<Jsonb>(column_error);
    if (contents == Contents::outcome) return record;
    record.recovery_point = copy<text>(column_recovery_point);
    record.recovery_state = copy<Jsonb>(column_recovery_state);
    record.headers = copy<Jsonb>(column_headers);
    record.response = copy<Jsonb>(column_response);
    record.body = copy<bytea>(column_body);
    record.request = stored_copy(column_request);
    return record;
}

std::optional<Datum> RecordRow::tenant_column() const {
    if (first_ == 1) return std::nullopt;
    bool null;
    const Datum value = slot_getattr(slot_, 1, &null);
    if (null) return std::nullopt;
    const FormData_pg_attribute* type = TupleDescAttr(slot_->tts_tupleDescriptor, 0);
    return datumCopy(value, type->attbyval, type->attlen);
}

// As it is stored, compressed or out of line.
varlena* RecordRow::stored_copy(Column which) const {
    const auto value = column(which);
    if (!value) return nullptr;
    const void* stored = DatumGetPointer(*value);
    const Size size = VARSIZE_ANY(stored);
    return static_cast<varlena*>(memcpy(palloc(size), stored, size));
}

std::span<const RecordPlace> records_of_tenant(const List* tables,
                                               std::optional<std::int32_t> scope,
                                               std::string_view tenant) {
    StringInfoData found;  // places
    initStringInfo(&found);
    for (int i = 0; i < list_length(tables); ++i) {
        Relation table = try_open_records(list_nth_oid(tables, i), AccessShareLock);
        if (table == nullptr) continue;
        scan_committed_rows(table, [&](TupleTableSlot* slot) {
            const RecordRow row(slot);
            if ((scope && row.scope_id() != *scope) || row.tenant() != tenant) return;
            const RecordPlace place{row.digest(), RelationGetRelid(table)};
            appendBinaryStringInfo(&found, reinterpret_cast<const char*>(&place), sizeof place);
        });
        table_close(table, AccessShareLock);
    }
    auto* places = reinterpret_cast<RecordPlace*>(found.data);
    const std::size_t size = static_cast<std::size_t>(found.len) / sizeof(RecordPlace);
    std::sort(places, places + size);
    return {places, size};
}

Found found_by(const DigestScan& scan, const KeyName& name, Contents contents) {
    if (!is_record_of(RecordRow(scan.slot()), name)) report::digest_collision();
    return read_hit(scan, contents);
}

Found probe(const Records& records, const KeyName& name, Contents contents) {
    DigestScan scan(records);
    const Found found = scan.find(name.digest) ? found_by(scan, name, contents) : Found{};
    scan.end();
    return found;
}

namespace {

// What read() returns of the row of the digest. Nothing when there is no row, or when it is still
// being inserted.
template <class Read>
auto read_behind(const Records& records, const core::Digest& digest, Read read) {
    std::optional<std::invoke_result_t<Read, const DigestScan&>> found;
    trivial<decltype(found)>();
    DigestScan scan(records);
    if (scan.find(digest) && scan.presence() != core::Presence::inserting) found = read(scan);
    scan.end();
    return found;
}

}  // namespace

std::optional<FoundKey> probe_digest(const Records& records, const core::Digest& digest) {
    return read_behind(records, digest, [](const DigestScan& scan) {
        return FoundKey{RecordRow(scan.slot()).name(), read_hit(scan, Contents::all)};
    });
}

std::optional<KeyName> name_behind(const Records& records, const core::Digest& digest) {
    return read_behind(records, digest,
                       [](const DigestScan& scan) { return RecordRow(scan.slot()).name(); });
}

// An index that REINDEX has made is as good as the one that it replaces, so the index is looked up
// for each search.
UnfinishedSearch::UnfinishedSearch(const Records& records, std::int32_t scope_id) {
    const int first = has_tenant_column(RelationGetDescr(records.table())) ? 2 : 1;
    const auto scopes = static_cast<AttrNumber>(first + column_scope);
    const Oid index = find_partial_index(records.table(), scopes,
                                         {static_cast<AttrNumber>(first + column_state),
                                          static_cast<char>(core::State::in_progress)});
    ScanKeyData key;
    ScanKeyInit(&key, scopes, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(scope_id));
    scan_ = systable_beginscan(records.table(), index, OidIsValid(index), SnapshotSelf, 1, &key);
}

void UnfinishedSearch::end() {
    systable_endscan(scan_);
}

std::optional<RecordRow> UnfinishedSearch::next() {
    while (HeapTupleIsValid(systable_getnext(scan_))) {
        CHECK_FOR_INTERRUPTS();
        const RecordRow row(scan_->slot);
        if (row.state() == core::State::in_progress) return row;
    }
    return std::nullopt;
}

WriteResult write_record(const Records& records, const KeyName& name, const Record& record,
                         Predecessor predecessor, const WaitBound& bound) {
    if (predecessor == Predecessor::none) return write_over(records, name, record, Found{}, bound);
    const Found old = probe(records, name, Contents::claim);
    if (is_row(old) && !outlived(old.record, record)) refuse_bypass();
    return write_over(records, name, record, old, bound);
}

WriteResult write_over(const Records& records, const KeyName& name, const Record& record,
                       const Found& old, const WaitBound& bound) {
    Assert(KeyLock(name.digest).is_held());
    Assert(!is_row(old) || ActiveSnapshotSet());  // keeps VACUUM from the row's place
    TupleTableSlot* slot = table_slot_create(records.table(), nullptr);
    store_row(slot, name, record, old.tenant_column);
    WriteResult result{WriteOutcome::gone, InvalidTransactionId};
    if (is_row(old))
        result = result_of(replace_row(records, name, old.tid, slot, bound), changed_meanwhile);
    if (result.outcome == WriteOutcome::gone) result = insert(records, name, slot, bound);
    Assert(result.outcome != WriteOutcome::gone);
    ExecDropSingleTupleTableSlot(slot);
    CommandCounterIncrement();
    return result;
}

WriteResult delete_record(const Records& records, const Found& found, const WaitBound& bound) {
    Assert(found.presence != core::Presence::absent);
    return delete_at(records, found.tid, bound, changed_meanwhile);
}

WriteResult delete_at(const KeyedTable& table, ItemPointerData row, const WaitBound& bound,
                      const char* replaced) {
    const ChangeResult changed =
        change_row(table.table(), row, RowChange::deletion, bound,
                   [relation = table.table(), tid = row]() mutable {
                       return compat::delete_row(relation, &tid, compat::Waiting::yes);
                   });
    CommandCounterIncrement();
    return result_of(changed, replaced);
}

bool has_outlived_answer(const RecordRow& row, std::int64_t answer_ttl, TimestampTz now) {
    return row.state() != core::State::in_progress &&
           core::is_answer_outlived(core::answered_at(row.created(), row.lease_end()), answer_ttl,
                                    now) &&
           (row.has_answer() || row.has_request());
}

// The row is locked first, because an update waits for a transaction that has locked it.
bool try_erase(Relation records, TupleTableSlot* slot) {
    const ItemPointerData tid = slot->tts_tid;
    if (try_lock_row(records, tid, RowChange::update) != TM_Ok) return false;
    const RecordRow row(slot);
    Record rest = erased(row.read(Contents::outcome));
    rest.redacted = rest.redacted || row.has_answer();
    TupleTableSlot* erased_row = table_slot_create(records, nullptr);
    store_row(erased_row, row.name(), rest, row.tenant_column());
    const TM_Result result = update_row(records, tid, erased_row, refuse_bypass);
    ExecDropSingleTupleTableSlot(erased_row);
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
            report::serialization_failure(changed_meanwhile);
    }
}

}  // namespace idem::pg
