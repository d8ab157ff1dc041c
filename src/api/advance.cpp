// idem.advance(): tells whether a message is new by its number, and moves the source's watermark.
// idem.reset_stream(): sets the watermark; PUBLIC may not execute it.
//
// An ordered stream needs one row per source, however many messages the source sends. Transactions
// that advance the same source queue for its key lock, within the scope's wait, until the previous
// one has committed, so that the stream is handled in order. A message behind the committed
// watermark is answered without queueing.
//
// Locking: the key lock of the source's digest, then the watermark table. The key lock is kept when
// the watermark moves and released in the same call otherwise; reset_stream() releases it always.
#include "api/advance.hpp"

#include "api/admission.hpp"
#include "api/arguments.hpp"
#include "api/locked_key.hpp"
#include "core/decision.hpp"
#include "pg/lock.hpp"
#include "pg/open_claims.hpp"
#include "pg/report.hpp"
#include "pg/secret.hpp"
#include "pg/stats.hpp"
#include "pg/watermark.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;
using core::SequencePosition;

struct Call : KeyCall {
    std::int64_t seq;
    bool contiguous;
};

Call read_call(FunctionCallInfo fcinfo) {
    const auto seq = pg::bigint_arg(fcinfo, 2);
    if (!seq) report::missing_argument("seq");
    const auto contiguous = pg::bool_arg(fcinfo, 4);
    if (!contiguous) report::null_argument("contiguous");
    const KeyCall call = read_source(fcinfo, 3, "advance");
    // The watermark would stay where it is when the scope's records are moved.
    if (call.scope->records)
        ereport(ERROR,
                (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                 errmsg("scope \"%s\" has no streams", call.scope->name),
                 errdetail("The scope's records are in tables that are moved. Watermarks are in "
                           "the table idem.watermark, and would stay behind."),
                 errhint("Call idem.once() with the key of each message, or idem.advance() in a "
                         "scope whose records are in idem.record.")));
    return {call, *seq, *contiguous};
}

pg::Watermark look(const pg::KeyName& source, bool locked) {
    const pg::Watermarks table = locked ? pg::Watermarks::to_write() : pg::Watermarks::to_read();
    if (locked) (void)pg::records_after_change(source.scope_id);
    const pg::Watermark found = pg::find_watermark(table, source);
    table.close();
    if (!found.in_snapshot)
        report::serialization_failure(
            "The move of the watermark was committed after this transaction's snapshot was taken.");
    return found;
}

// Without a number, deletes the watermark.
void write_watermark(const pg::KeyName& source, const pg::Watermark& from,
                     std::optional<std::int64_t> seq, const pg::WaitBound& bound) {
    const pg::Watermarks table = pg::Watermarks::to_write();
    const pg::WriteResult writing = seq ? pg::move_watermark(table, source, from, *seq, bound)
                                        : pg::delete_watermark(table, from, bound);
    table.close();
    check_written(source.key, writing);
}

// Remembers the source as a finished claim whose token is never handed out: its lock counts as one
// of the transaction's, and is given up with its savepoint.
void remember(const Call& call) {
    if (pg::find_claim(call.name.digest) != nullptr) return;
    check_open_claims(call.scope->id);
    pg::Claim claim(
        call.name, call.scope->name,
        {core::TokenKind::atomic, call.name.digest, core::first_attempt, pg::random_bits()});
    claim.of_source = true;
    pg::close_claim(pg::remember_claim(claim), pg::Phase::finished);
}

void move(const Call& call, const pg::Watermark& from, const pg::WaitBound& bound) {
    Assert(!from.seq || call.seq > *from.seq);
    if (!from.seq) require_tenant(*call.scope, call.name.tenant);
    remember(call);
    write_watermark(call.name, from, call.seq, bound);
}

bool advance(const Call& call) {
    const pg::WaitBound bound(call.scope->wait);
    pg::KeyLock lock(call.name.digest);
    bool locked = lock.try_acquire();
    for (;;) {
        const pg::Watermark mark = look(call.name, locked);
        const SequencePosition position = core::judge_sequence(mark.seq, call.seq, call.contiguous);
        if (position == SequencePosition::behind) {
            if (locked) lock.release();
            return false;
        }
        if (locked && !mark.writer.valid()) {
            if (position == SequencePosition::gap)
                ereport(ERROR, (report::own_error("sequence_gap"),
                                errmsg("gap in the sequence of source \"%s\"",
                                       report::c_string(call.name.key)),
                                errdetail("Expected number " INT64_FORMAT ", got " INT64_FORMAT ".",
                                          *mark.seq + 1, call.seq),
                                errhint("Handle the missing messages first, or skip them with "
                                        "\"contiguous => false\".")));
            move(call, mark, bound);
            return true;
        }
        // With the lock, wait for a writer that bypassed it; without, for the lock's holder.
        if (locked)
            give_way(lock, call.name.key, mark.writer, bound);
        else
            acquire(lock, call.name.key, bound);
        locked = true;
    }
}

}  // namespace

std::optional<std::int64_t> reset_stream(const pg::KeyName& source, std::optional<std::int64_t> seq,
                                         const pg::WaitBound& bound) {
    pg::KeyLock lock(source.digest);
    acquire(lock, source.key, bound);
    pg::Watermark mark = look(source, true);
    while (mark.writer.valid()) {
        give_way(lock, source.key, mark.writer, bound);
        mark = look(source, true);
    }
    if (seq || mark.seq) write_watermark(source, mark, seq, bound);
    lock.release();
    return mark.seq;
}

}  // namespace idem::api

IDEM_FUNCTION(idem_advance) {
    using namespace idem;
    api::require_writable("idem.advance()", api::read_by_streams);
    const api::Call call = api::read_call(fcinfo);
    const bool moved = api::advance(call);
    pg::count(call.name.scope_id, moved ? pg::Counter::advances : pg::Counter::duplicates);
    PG_RETURN_BOOL(moved);
}

IDEM_FUNCTION(idem_reset_stream) {
    using namespace idem;
    api::require_writable("idem.reset_stream()", api::read_by_streams);
    const api::KeyCall call = api::read_source(fcinfo, 3, "reset_stream");
    const auto old =
        api::reset_stream(call.name, pg::bigint_arg(fcinfo, 2), pg::WaitBound(call.scope->wait));
    if (!old) api::require_tenant(*call.scope, call.name.tenant);
    if (!old) PG_RETURN_NULL();
    PG_RETURN_INT64(*old);
}
