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

WriteResult move_watermark(const Watermarks& watermarks, const KeyName& source,
                           const Watermark& from, std::int64_t seq, const WaitBound& bound) {
    Assert(KeyLock(source.digest).is_held());
    Assert(!from.seq || (seq > *from.seq && ItemPointerIsValid(&from.tid)));
    const Relation table = watermarks.table();
    const pg_uuid_t digest = uuid_of(source.digest);
    const Row<columns> row = row_of(source, &digest, seq);
    TupleTableSlot* slot = new_row(table, row.values(), row.nulls());
    ChangeResult moved{TM_Ok, InvalidTransactionId};
    if (!from.seq)
        insert_row(table, slot, refuse_overtaken);
    else
        moved = change_row(table, from.tid, RowChange::update, bound, [&] {
            return update_row(table, from.tid, slot, compat::Waiting::yes, refuse_overtaken);
        });
    ExecDropSingleTupleTableSlot(slot);
    if (moved.result == TM_WouldBlock) return {WriteOutcome::blocked, moved.in_the_way};
    if (moved.result != TM_Ok)
        report::serialization_failure(
            "Another transaction moved the watermark without its key lock.");
    CommandCounterIncrement();
    return {WriteOutcome::written, InvalidTransactionId};
}

}  // namespace idem::pg
