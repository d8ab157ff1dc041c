#include "pg/store/watermark.hpp"

#include "pg/store/key_lock.hpp"
#include "pg/store/scope.hpp"

namespace idem::pg {
namespace {

enum Column {
    column_digest,
    column_seq,
    column_updated,
    column_scope,
    column_tenant,
    column_source,
    columns
};
static_assert(columns == watermark_columns);

Datum watermark_column(TupleTableSlot* slot, Column which) {
    bool null;
    return slot_getattr(slot, which + 1, &null);
}

bool is_of(TupleTableSlot* slot, const Key& source) {
    return DatumGetInt32(watermark_column(slot, column_scope)) == source.scope_id &&
           view_of(DatumGetTextPP(watermark_column(slot, column_source))) == source.key &&
           view_of(DatumGetTextPP(watermark_column(slot, column_tenant))) == source.tenant;
}

constexpr const char* moved_meanwhile =
    "Another transaction moved the watermark without its key lock.";

[[noreturn]] bool refuse_duplicate(Relation /* index */) {
    report::serialization_failure(moved_meanwhile);
}

ChangeResult move_watermark(Relation table, const Key& source, const Watermark& from,
                            std::int64_t seq, WaitBound& bound) {
    Assert(!from.seq || ItemPointerIsValid(&from.tid));
    const auto digest = std::bit_cast<pg_uuid_t>(source.digest);
    Row<columns> row;
    row.set(column_digest, UUIDPGetDatum(&digest));
    row.set(column_seq, Int64GetDatum(seq));
    row.set_time(column_updated, GetCurrentTimestamp());
    row.set_int(column_scope, source.scope_id);
    row.set_text(column_tenant, source.tenant);
    row.set_text(column_source, source.key);
    TupleTableSlot* slot = new_row(table, row.values(), row.nulls());
    check_not_null(slot);
    ChangeResult moved{TM_Ok, InvalidTransactionId};
    if (!from.seq)
        insert_row(table, slot, refuse_duplicate);
    else
        moved = change_row(table, from.tid, RowChange::update, bound,
                           [&] { return update_row(table, from.tid, slot, refuse_duplicate); });
    ExecDropSingleTupleTableSlot(slot);
    if (moved.result == TM_WouldBlock) return moved;
    if (moved.result != TM_Ok) report::serialization_failure(moved_meanwhile);
    CommandCounterIncrement();
    return moved;
}

}  // namespace

std::int32_t watermark_scope(TupleTableSlot* slot) {
    return DatumGetInt32(watermark_column(slot, column_scope));
}

// A row that is being moved has two versions: one counts, the other tells who is moving it.
Watermark find_watermark(const Key& source, Access access) {
    const KeyedTable table(table_oid(Table::watermark), access);
    if (access == Access::write) (void)records_after_change(source.scope_id);
    Watermark found;
    bool in_snapshot = true;
    DigestScan scan(table);
    scan.seek(source.digest);
    while (scan.next()) {
        if (!is_of(scan.slot(), source)) report::digest_collision();
        const core::Presence presence = scan.presence();
        if (presence != core::Presence::own && scan.writer().valid()) found.writer = scan.writer();
        if (presence == core::Presence::inserting) continue;
        found.seq = DatumGetInt64(watermark_column(scan.slot(), column_seq));
        found.tid = scan.slot()->tts_tid;
        in_snapshot = presence == core::Presence::own || scan.in_snapshot();
    }
    scan.end();
    table.close();
    if (!in_snapshot)
        report::serialization_failure(
            "The move of the watermark was committed after this transaction's snapshot was taken.");
    return found;
}

ChangeResult write_watermark(const Key& source, const Watermark& from,
                             std::optional<std::int64_t> seq, WaitBound& bound) {
    Assert(KeyLock(source.digest).is_held());
    const KeyedTable table(table_oid(Table::watermark), Access::write);
    const ChangeResult result = seq ? move_watermark(table.table(), source, from, *seq, bound)
                                    : delete_at(table, from.tid, bound, moved_meanwhile);
    table.close();
    return result;
}

std::span<const Key> sources_of(std::int32_t scope_id, std::string_view tenant) {
    StringInfoData found;  // keys
    initStringInfo(&found);
    scan_committed(Table::watermark, [&, tenant](TupleTableSlot* slot) {
        if (watermark_scope(slot) != scope_id ||
            view_of(DatumGetTextPP(watermark_column(slot, column_tenant))) != tenant)
            return;
        text* source = DatumGetTextPCopy(watermark_column(slot, column_source));
        const pg_uuid_t* digest = DatumGetUUIDP(watermark_column(slot, column_digest));
        const Key key{scope_id, tenant, view_of(source), std::bit_cast<core::Digest>(*digest)};
        appendBinaryStringInfo(&found, reinterpret_cast<const char*>(&key), sizeof key);
    });
    auto* keys = reinterpret_cast<Key*>(found.data);
    const std::size_t size = static_cast<std::size_t>(found.len) / sizeof(Key);
    std::sort(keys, keys + size, [](const Key& a, const Key& b) { return a.digest < b.digest; });
    return {keys, size};
}

}  // namespace idem::pg
