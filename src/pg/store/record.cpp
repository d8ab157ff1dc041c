#include "pg/store/record.hpp"

#include "pg/server/failure.hpp"
#include "pg/store/key_lock.hpp"

namespace idem::pg {
namespace {

[[noreturn]] void refuse_bypass() {
    report::serialization_failure(
        "Another transaction wrote the key's record without the key lock.");
}

constexpr const char* changed_meanwhile =
    "Another transaction changed the key's record at the same time.";

Datum new_uuid(const core::Uuid& bytes) {
    auto* uuid = static_cast<pg_uuid_t*>(palloc(sizeof(pg_uuid_t)));
    *uuid = std::bit_cast<pg_uuid_t>(bytes);
    return UUIDPGetDatum(uuid);
}

// Deletes a row that this command has inserted, and of which no trigger has been told.
void take_back(const Records& records, ItemPointer ours) {
    CommandCounterIncrement();
    const TM_Result result = compat::delete_tuple(records.table(), ours, compat::Waiting::no);
    if (result != TM_Ok) elog(ERROR, "could not take back a row: result %d", result);
}

// Another row has, or may come to have, the digest of ours in this index; others, as long as the
// primary key is rebuilt, may not have its entry. Waits for its writer as a unique index does, but
// within the bound. Returns once ours is the only row; raises 40001 when another live row stays.
ChangeResult wait_out_duplicates(const Records& records, Relation index, const core::Digest& digest,
                                 ItemPointer ours, WaitBound& bound) {
    ChangeResult result{TM_Ok, InvalidTransactionId};
    DigestScan scan(records, index);
    while (result.result == TM_Ok) {
        scan.seek(digest);
        bool other = false;
        while (!other && scan.next()) other = !ItemPointerEquals(ours, &scan.slot()->tts_tid);
        if (!other) break;
        const RowWriter writer = scan.writer();
        if (!writer.valid()) refuse_bypass();
        if (!scan.wait(bound)) result = {TM_WouldBlock, writer.xid};
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
    ErrorContextCallback context{error_context_stack, add_tenant_context, table};
    error_context_stack = &context;
    const Datum value =
        value_of_text(column->atttypid, report::c_string(tenant), column->atttypmod);
    error_context_stack = context.previous;
    return value;
}

// Replaces the row at tid. Raises 40001 when another live row turns out to hold the key.
ChangeResult replace_row(const Records& records, const core::Digest& digest, ItemPointerData tid,
                         TupleTableSlot* slot, WaitBound& bound) {
    const auto on_duplicate = [&](Relation index) {
        if (wait_out_duplicates(records, index, digest, &slot->tts_tid, bound).result ==
            TM_WouldBlock)
            report::serialization_failure(changed_meanwhile);
        return true;
    };
    return change_row(records.table(), tid, RowChange::update, bound,
                      [&] { return update_row(records.table(), tid, slot, on_duplicate); });
}

// Whether the new record may replace the old one.
bool is_superseded(const Record& old, const Record& record) {
    return old.expires() <= GetCurrentTimestamp() ||
           (!old.is_finished() && old.attempt() <= record.attempt());
}

// Raises 40001 with the detail when another transaction has replaced the row. One that has deleted
// it is most likely that of the purge worker.
void check_not_replaced(const ChangeResult& changed, const char* detail) {
    if (changed.result != TM_Ok && changed.result != TM_Deleted && changed.result != TM_WouldBlock)
        report::serialization_failure(detail);
}

ChangeResult insert(const Records& records, const core::Digest& digest, TupleTableSlot* slot,
                    WaitBound& bound) {
    ChangeResult result{TM_Ok, InvalidTransactionId};
    const auto on_duplicate = [&](Relation index) {
        result = wait_out_duplicates(records, index, digest, &slot->tts_tid, bound);
        return result.result == TM_Ok;
    };
    if (!insert_row(records.table(), slot, on_duplicate)) take_back(records, &slot->tts_tid);
    return result;
}

bool is_row(const Found& found) {
    return found.presence != core::Presence::absent && found.presence != core::Presence::inserting;
}

// The current hit of the scan.
Found found_by(const DigestScan& scan) {
    Found found;
    const TupleTableSlot* slot = scan.slot();
    found.presence = scan.presence();
    Assert(ItemPointerIsValid(&slot->tts_tid));
    found.writer = scan.writer();
    found.tid = slot->tts_tid;
    if (found.presence == core::Presence::inserting) return found;
    found.in_snapshot = scan.in_snapshot();
    found.replaced = found.presence == core::Presence::deleting && has_successor(scan.slot());
    found.record = Record::copy_of(scan.slot());
    return found;
}

// The same for the hit of this key.
Found found_by(const DigestScan& scan, const Key& key) {
    const Found found = found_by(scan);
    const Record record = is_row(found) ? found.record : Record(scan.slot());
    if (!record.is_of(key)) report::digest_collision();
    return found;
}

// What a NewRecord points to: first the value of the column for the tenant, if the table has one.
struct Values {
    std::array<Datum, 1 + Record::columns> values;
    std::array<bool, 1 + Record::columns> nulls;
};

// What read(scan) returns of the row that binds the digest; an empty result if there is none.
template <class Read>
auto read_row(const Records& records, const core::Digest& digest, Read read) {
    std::invoke_result_t<Read, const DigestScan&> result{};
    trivial<decltype(result)>();
    DigestScan scan(records);
    if (scan.find(digest)) result = read(scan);
    scan.end();
    return result;
}

ChangeResult write_over(const Records& records, const NewRecord& record, const Found& old,
                        WaitBound& bound) {
    const core::Digest digest = record.digest();
    Assert(KeyLock(digest).is_held());
    Assert(!is_row(old) || ActiveSnapshotSet());  // keeps VACUUM from the row's place
    TupleTableSlot* slot = table_slot_create(records.table(), nullptr);
    record.store_in(slot);
    ChangeResult result{TM_Deleted, InvalidTransactionId};
    if (is_row(old)) result = replace_row(records, digest, old.tid, slot, bound);
    check_not_replaced(result, changed_meanwhile);
    if (result.result == TM_Deleted) result = insert(records, digest, slot, bound);
    ExecDropSingleTupleTableSlot(slot);
    CommandCounterIncrement();
    return result;
}

}  // namespace

Records::Records(Oid table, Access access)
    : KeyedTable(table == common_records ? table_oid(Table::record) : table, access,
                 table == common_records ? table_open : open_record_table) {}

void Records::check_tenant(std::string_view tenant) const {
    if (has_tenant_column(RelationGetDescr(table())))
        (void)tenant_value(RelationGetDescr(table()), tenant);
}

bool has_record_layout() {
    return get_attnum(table_oid(Table::record), last_record_column) == Record::columns;
}

// ---- The view -----------------------------------------------------------------------------------

// Values of all columns that the table has, then the row.
Record Record::copy_of(TupleTableSlot* slot) {
    const TupleDesc table = slot->tts_tupleDescriptor;
    const HeapTuple row = ExecFetchSlotHeapTuple(slot, false, nullptr);
    Record copy(slot);
    if (table->natts < copy.first_ + columns)
        elog(ERROR, "table \"%s\" has %d columns", get_rel_name(slot->tts_tableOid), table->natts);
    const auto natts = static_cast<Size>(table->natts);
    const Size header = MAXALIGN(natts * (sizeof(Datum) + sizeof(bool)));
    char* memory = static_cast<char*>(palloc(header + row->t_len));
    copy.slot_ = nullptr;
    copy.values_ = reinterpret_cast<Datum*>(memory);
    copy.nulls_ = reinterpret_cast<bool*>(copy.values_ + natts);
    HeapTupleData tuple = *row;
    tuple.t_data = reinterpret_cast<HeapTupleHeader>(memory + header);
    memcpy(tuple.t_data, row->t_data, row->t_len);
    heap_deform_tuple(&tuple, table, copy.values_, copy.nulls_);
    return copy;
}

void Record::free() const {
    Assert(slot_ == nullptr);
    if (values_ != nullptr) pfree(values_);
}

std::string_view Record::key() const {
    const auto uuid = column(column_key_uuid);
    if (!uuid) return text_in(column_key);
    const core::UuidText text = core::uuid_text(std::bit_cast<core::Uuid>(*DatumGetUUIDP(*uuid)));
    return {static_cast<char*>(memcpy(palloc(text.size()), text.data(), text.size())), text.size()};
}

bool Record::is_of(const Key& other) const {
    return scope_id() == other.scope_id && key() == other.key && tenant() == other.tenant;
}

Key Record::key_in(Oid table) const {
    return {scope_id(), view_of(text_of(tenant())), view_of(text_of(key())), digest(), table};
}

bool Record::is_same_as(const Record& other) const {
    for (int i = 0; i < columns; ++i)
        if (column(static_cast<Column>(i)) != other.column(static_cast<Column>(i))) return false;
    return true;
}

// ---- A record to be written ---------------------------------------------------------------------

NewRecord::NewRecord(const Key& key) : NewRecord(Record()) {
    set(column_digest, new_uuid(key.digest));
    set(column_scope, Int32GetDatum(key.scope_id));
    set_pointer(column_tenant, text_of(key.tenant));
    if (const auto uuid = core::canonical_uuid(key.key))
        set(column_key_uuid, new_uuid(*uuid));
    else
        set_pointer(column_key, text_of(key.key));
}

NewRecord::NewRecord(const Record& old) : Record(old) {
    auto* copy = static_cast<Values*>(palloc(sizeof(Values)));
    copy->nulls.fill(true);
    if (nulls_ != nullptr) {
        if (slot_ != nullptr) slot_getsomeattrs(slot_, first_ + columns);
        std::copy_n(values_, first_ + columns, copy->values.data() + (1 - first_));
        std::copy_n(nulls_, first_ + columns, copy->nulls.data() + (1 - first_));
    }
    slot_ = nullptr;
    values_ = copy->values.data();
    nulls_ = copy->nulls.data();
    first_ = 1;
}

void NewRecord::store_in(TupleTableSlot* slot) const {
    // A lease has an end; what is finished has no recovery point.
    Assert(attempt() >= 1 && scope_id() > 0 && extra_attempts() >= 0);
    Assert(lease_end() || is_finished());
    Assert(!is_finished() || recovery_point() == nullptr);
    const TupleDesc table = slot->tts_tupleDescriptor;
    const bool has_tenant = has_tenant_column(table);
    if (has_tenant && nulls_[0]) {
        values_[0] = tenant_value(table, tenant());
        nulls_[0] = false;
    }
    const std::size_t skipped = has_tenant ? 0 : 1;
    fill_row(slot, {values_ + skipped, 1 + columns - skipped},
             {nulls_ + skipped, 1 + columns - skipped});
    check_not_null(slot);
}

NewRecord erased(const Record& record) {
    NewRecord rest(record);
    rest.set_recovery_state(nullptr);
    rest.set_request(nullptr);
    rest.set_headers(nullptr);
    rest.set_response(nullptr);
    rest.set_body(nullptr);
    Jsonb* error = record.error();
    Jsonb* kept = sqlstate_only(error);
    if (kept != error) rest.set_error(kept);
    if (record.is_finished() && (record.has_answer() || kept != error)) rest.set_redacted(true);
    return rest;
}

void hide_expired_answer(Record& record, std::optional<std::int64_t> answer_ttl, TimestampTz now) {
    const auto answered = record.completed_at();
    if (answered && core::is_answer_expired(*answered, answer_ttl, now))
        record = static_cast<Record>(erased(record));  // which has no members of its own
}

// ---- Reading ------------------------------------------------------------------------------------

std::span<const RecordPlace> records_of_tenant(const List* tables,
                                               std::optional<std::int32_t> scope,
                                               std::string_view tenant) {
    std::span<RecordPlace> room = {static_cast<RecordPlace*>(palloc(1024)),
                                   1024 / sizeof(RecordPlace)};
    std::size_t size = 0;
    for (int i = 0; i < list_length(tables); ++i) {
        Relation table = try_open_records(list_nth_oid(tables, i), AccessShareLock);
        if (table == nullptr) continue;
        scan_committed_rows(table, [&](TupleTableSlot* slot) {
            const Record row(slot);
            if ((scope && row.scope_id() != *scope) || row.tenant() != tenant) return;
            if (size == room.size())  // of more than 1 GB, if need be
                room = {
                    static_cast<RecordPlace*>(repalloc_huge(room.data(), 2 * room.size_bytes())),
                    2 * room.size()};
            room[size++] = {row.digest(), RelationGetRelid(table)};
        });
        table_close(table, AccessShareLock);
    }
    const std::span places = room.first(size);
    std::sort(places.begin(), places.end());
    return places;
}

Found probe(const Records& records, const Key& key) {
    return read_row(records, key.digest,
                    [&](const DigestScan& scan) { return found_by(scan, key); });
}

Found probe(const Key& key, Access access) {
    const Records records(key.table, access);
    if (access == Access::write) check_place(key.scope_id, key.table);
    const Found found = probe(records, key);
    records.close();
    return found;
}

Found probe_digest(std::int32_t scope, Oid table, const core::Digest& digest) {
    const Records records(table, Access::write);
    check_place(scope, table);
    const Found found =
        read_row(records, digest, [](const DigestScan& scan) { return found_by(scan); });
    records.close();
    return found;
}

std::optional<Key> key_behind(Oid table, const core::Digest& digest) {
    const Records records(table, Access::read);
    const auto key = read_row(records, digest, [table](const DigestScan& scan) {
        return scan.presence() == core::Presence::inserting
                   ? std::nullopt
                   : std::optional(Record(scan.slot()).key_in(normalize_table(table)));
    });
    records.close();
    return key;
}

// An index that REINDEX has made is as good as the one that it replaces, so the index is looked up
// for each search. Despite its name, this scan serves any table, with an index or without.
SysScanDesc begin_unfinished_search(Relation table, std::int32_t scope_id) {
    const int first = has_tenant_column(RelationGetDescr(table)) ? 2 : 1;
    const auto scopes = static_cast<AttrNumber>(first + Record::column_scope);
    const Oid index = find_unfinished_index(table);
    ScanKeyData key;
    ScanKeyInit(&key, scopes, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(scope_id));
    return systable_beginscan(table, index, OidIsValid(index), SnapshotSelf, 1, &key);
}

std::optional<ResumableOperation> resumable_operation(std::int32_t scope_id) {
    const TimestampTz now = GetCurrentTimestamp();
    const List* tables = record_tables();
    std::optional<ResumableOperation> found;
    for (int i = 0; i < list_length(tables) && !found; ++i) {
        Relation table = try_open_records(list_nth_oid(tables, i), AccessShareLock);
        if (table == nullptr) continue;
        for_each_unfinished(table, scope_id, [&found, now](const Record& row) {
            if (row.expires() <= now || row.recovery_point() == nullptr) return true;
            found = {report::c_string(row.key()), text_to_cstring(row.recovery_point())};
            return false;
        });
        table_close(table, AccessShareLock);
    }
    return found;
}

// ---- Writing ------------------------------------------------------------------------------------

ChangeResult write_record(const Key& key, const NewRecord& record, bool replaces,
                          WaitBound& bound) {
    const Records records(key.table, Access::write);
    const Found old = replaces ? probe(records, key) : Found{};
    if (is_row(old) && !is_superseded(old.record, record)) refuse_bypass();
    const ChangeResult result = write_over(records, record, old, bound);
    records.close();
    return result;
}

ChangeResult write_over(Oid table, const NewRecord& record, const Found& old, WaitBound& bound) {
    const Records records(table, Access::write);
    const ChangeResult result = write_over(records, record, old, bound);
    records.close();
    return result;
}
ChangeResult delete_record(Oid table, const Found& found, WaitBound& bound) {
    Assert(found.presence != core::Presence::absent);
    const Records records(table, Access::write);
    const ChangeResult result = delete_at(records, found.tid, bound, changed_meanwhile);
    records.close();
    return result;
}

ChangeResult delete_at(const KeyedTable& table, ItemPointerData row, WaitBound& bound,
                       const char* replaced) {
    const ChangeResult changed = change_row(table.table(), row, RowChange::deletion, bound, [&] {
        return delete_row(table.table(), row, compat::Waiting::yes);
    });
    CommandCounterIncrement();
    check_not_replaced(changed, replaced);
    return changed;
}

// The row is locked first, because an update waits for a transaction that has locked it.
bool erase_expired_answer(Relation records, TupleTableSlot* slot, std::int64_t answer_ttl,
                          TimestampTz now) {
    const Record record(slot);
    const auto answered = record.completed_at();
    if (!answered || !core::is_answer_expired(*answered, answer_ttl, now)) return false;
    const NewRecord rest = erased(record);
    if (rest.is_same_as(record)) return false;
    const ItemPointerData tid = slot->tts_tid;
    if (try_lock_row(records, tid, RowChange::update) != TM_Ok) return false;
    TupleTableSlot* erased_row = table_slot_create(records, nullptr);
    rest.store_in(erased_row);
    const TM_Result result =
        update_row(records, tid, erased_row, [](Relation /* index */) -> bool { refuse_bypass(); });
    ExecDropSingleTupleTableSlot(erased_row);
    return result == TM_Ok;
}

BulkWriter::BulkWriter(const Records& records)
    : records_(records),
      scan_(records),
      indexes_(records.table()),
      row_(table_slot_create(records.table(), nullptr)),
      memory_(AllocSetContextCreate(CurrentMemoryContext, "idem key", ALLOCSET_SMALL_SIZES)) {}

void BulkWriter::end() {
    indexes_.close();
    MemoryContextDelete(memory_);
    ExecDropSingleTupleTableSlot(row_);
    scan_.end();
}

// What the scan allocates serves more than one key, so only the row is read in this key's memory.
Found BulkWriter::look(const Key& key) {
    Assert(newest_ <= key.digest);  // else two calls could wait for each other
    newest_ = key.digest;
    MemoryContextReset(memory_);
    if (!scan_.find(key.digest)) return {};
    const MemoryContext before = MemoryContextSwitchTo(memory_);
    const Found found = found_by(scan_, key);
    MemoryContextSwitchTo(before);
    return found;
}

ChangeResult BulkWriter::write(const NewRecord& record, const Found& found, WaitBound& bound) {
    const MemoryContext before = MemoryContextSwitchTo(memory_);
    record.store_in(row_);
    const ChangeResult written =
        found.presence == core::Presence::absent
            ? ChangeResult{insert() ? TM_Ok : TM_Updated, InvalidTransactionId}
            : replace_row(records_, record.digest(), found.tid, row_, bound);
    if (written.result != TM_Updated) check_not_replaced(written, changed_meanwhile);
    ExecClearTuple(row_);
    MemoryContextSwitchTo(before);
    return written;
}

// Whether the key is taken is known when its entry is in the index. Until then other callers cannot
// rely on the row and wait for the lock that the token names, even calls that should not wait. So
// nothing under that lock may wait.
bool BulkWriter::insert() {
    const Relation table = records_.table();
    const TransactionId xid = GetCurrentTransactionId();
    check_triggers(table, CMD_INSERT);
    check_partition(table, row_);
    const bool unfinished = is_unfinished(table, row_);
    const std::uint32_t token = SpeculativeInsertionLockAcquire(xid);
    table_tuple_insert_speculative(table, row_, GetCurrentCommandId(true), 0, nullptr, token);
    const bool alone = indexes_.add_digest_entries(row_) == nullptr;
    table_tuple_complete_speculative(table, row_, token, alone);
    SpeculativeInsertionLockRelease(xid);
    if (!alone) return false;
    indexes_.add_other_entries(row_, IndexEntries::all, unfinished);
    fire_triggers(table, CMD_INSERT, nullptr, row_);
    return true;
}

}  // namespace idem::pg
