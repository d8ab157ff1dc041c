#include "pg/watermark.hpp"

#include "pg/compat.hpp"
#include "pg/report.hpp"

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

Datum column(TupleTableSlot* slot, Column which) {
    bool null;
    return slot_getattr(slot, which + 1, &null);
}

bool is_of(TupleTableSlot* slot, const KeyName& source) {
    return DatumGetInt32(column(slot, column_scope)) == source.scope_id &&
           view_of(DatumGetTextPP(column(slot, column_source))) == source.key &&
           view_of(DatumGetTextPP(column(slot, column_tenant))) == source.tenant;
}

Row<columns> row_of(const KeyName& source, const pg_uuid_t* digest, std::int64_t seq) {
    Row<columns> row;
    row.set(column_digest, UUIDPGetDatum(digest));
    row.set(column_seq, Int64GetDatum(seq));
    row.set_time(column_updated, GetCurrentTimestamp());
    row.set_int(column_scope, source.scope_id);
    row.set_text(column_tenant, source.tenant);
    row.set_text(column_source, source.key);
    return row;
}

[[noreturn]] bool refuse_overtaken() {
    report::serialization_failure("Another transaction moved the watermark without its key lock.");
}

}  // namespace

std::int32_t watermark_scope(TupleTableSlot* slot) {
    return DatumGetInt32(column(slot, column_scope));
}

// A row that is being moved has two versions: one counts, the other tells who is moving it.
Watermark find_watermark(const Watermarks& watermarks, const KeyName& source) {
    Watermark found;
    DigestScan scan(watermarks);
    scan.seek(source.digest);
    while (scan.next()) {
        if (!is_of(scan.slot(), source)) report::digest_collision();
        const core::Presence presence = scan.presence();
        if (presence != core::Presence::own && scan.writer().valid()) found.writer = scan.writer();
        if (presence == core::Presence::inserting) continue;
        found.seq = DatumGetInt64(column(scan.slot(), column_seq));
        found.in_snapshot = presence == core::Presence::own || scan.in_snapshot();
        found.tid = scan.slot()->tts_tid;
    }
    scan.end();
    return found;
}

List* sources_of(std::int32_t scope_id, std::string_view tenant) {
    List* sources = NIL;
    const MemoryContext memory = CurrentMemoryContext;
    scan_committed(Table::watermark, [&, tenant](TupleTableSlot* slot) {
        if (watermark_scope(slot) != scope_id ||
            view_of(DatumGetTextPP(column(slot, column_tenant))) != tenant)
            return;
        const MemoryContext before = MemoryContextSwitchTo(memory);
        const std::string_view source = view_of(DatumGetTextPP(column(slot, column_source)));
        auto* name = static_cast<KeyName*>(palloc(sizeof(KeyName)));
        *name = {scope_id, tenant, view_of(text_of(source)), {}};
        memcpy(name->digest.data(), DatumGetUUIDP(column(slot, column_digest))->data,
               name->digest.size());
        sources = lappend(sources, name);
        MemoryContextSwitchTo(before);
    });
    list_sort(sources, [](const ListCell* a, const ListCell* b) {
        return memcmp(static_cast<const KeyName*>(lfirst(a))->digest.data(),
                      static_cast<const KeyName*>(lfirst(b))->digest.data(), sizeof(core::Digest));
    });
    return sources;
}

WriteResult delete_watermark(const Watermarks& watermarks, const Watermark& found,
                             const WaitBound& bound) {
    Assert(found.seq);
    return delete_at(watermarks, found.tid, bound,
                     "Another transaction moved the watermark without its key lock.");
}

WriteResult move_watermark(const Watermarks& watermarks, const KeyName& source,
                           const Watermark& from, std::int64_t seq, const WaitBound& bound) {
    Assert(KeyLock(source.digest).is_held());
    Assert(!from.seq || ItemPointerIsValid(&from.tid));
    const Relation table = watermarks.table();
    const pg_uuid_t digest = uuid_of(source.digest);
    const Row<columns> row = row_of(source, &digest, seq);
    TupleTableSlot* slot = new_row(table, row.values(), row.nulls());
    ChangeResult moved{TM_Ok, InvalidTransactionId};
    if (!from.seq)
        insert_row(table, slot, refuse_overtaken);
    else
        moved = change_row(table, from.tid, RowChange::update, bound,
                           [&] { return update_row(table, from.tid, slot, refuse_overtaken); });
    ExecDropSingleTupleTableSlot(slot);
    if (moved.result == TM_WouldBlock) return {WriteOutcome::blocked, moved.in_the_way};
    if (moved.result != TM_Ok)
        report::serialization_failure(
            "Another transaction moved the watermark without its key lock.");
    CommandCounterIncrement();
    return {WriteOutcome::written, InvalidTransactionId};
}

}  // namespace idem::pg
