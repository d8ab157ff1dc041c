// idem.advance(): tells whether a message is new by its number, and moves the source's watermark.
//
// An ordered stream needs one row per source, however many messages the source sends. Transactions
// that advance the same source queue for its key lock, within the scope's wait, until the previous
// one has committed, so that the stream is handled in order. A message behind the committed
// watermark is answered without queueing.
//
// Locking: the key lock of the source's digest, then the watermark table. The key lock is kept when
// the watermark moves and released in the same call otherwise.
#include "api/admission.hpp"
#include "api/arguments.hpp"
#include "api/locked_key.hpp"
#include "pg/open_claims.hpp"
#include "pg/shared/stats.hpp"
#include "pg/store/key_lock.hpp"
#include "pg/store/token.hpp"
#include "pg/store/watermark.hpp"

namespace idem::api {
namespace {

using core::SequencePosition;

struct Call : KeyCall {
    std::int64_t seq;
    bool contiguous;
};

Call read_advance_call(FunctionCallInfo fcinfo) {
    const auto seq = pg::value_arg<std::int64_t>(fcinfo, 2);
    if (!seq) report::missing_argument("seq");
    const bool contiguous = switch_arg(fcinfo, 4, "contiguous");
    const KeyCall call = read_source(fcinfo, "advance");
    // The watermark would stay where it is when the scope's records are moved.
    if (call.scope->records)
        ereport(ERROR,
                (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                 errmsg("scope \"%s\" has no streams", call.scope->name),
                 errdetail("The scope's records are in tables that are moved. Watermarks are in "
                           "the table idem.watermark, and would stay behind."),
                 errhint("Call idem.once() with the key of each message, or idem.advance() in a "
                         "scope whose records are in idem.record.")));
    return {call, *seq, contiguous};
}

// Remembers the source as a finished claim whose token is never handed out: its lock counts as one
// of the transaction's, and is given up with its savepoint.
void remember_source(const Call& call) {
    if (pg::find_claim(call.key.digest) != nullptr) return;
    check_open_claims(call.scope->id);
    pg::Claim claim(
        call.key, call.scope->name,
        {core::TokenKind::atomic, call.key.digest, core::first_attempt, pg::random_bits()});
    claim.of_source = true;
    pg::close_claim(pg::remember_claim(claim), pg::Phase::completed);
}

void advance_to(const Call& call, const pg::Watermark& from, pg::WaitBound& bound) {
    Assert(!from.seq || call.seq > *from.seq);
    if (!from.seq) require_tenant(*call.scope, call.key.tenant);
    remember_source(call);
    check_written(call.key.key, pg::write_watermark(call.key, from, call.seq, bound), bound);
}

bool advance(const Call& call) {
    pg::WaitBound bound(call.scope->wait);
    pg::KeyLock lock(call.key.digest);
    bool locked = lock.try_acquire();
    for (;;) {
        const pg::Watermark mark =
            pg::find_watermark(call.key, locked ? pg::Access::write : pg::Access::read);
        const SequencePosition position = core::judge_sequence(mark.seq, call.seq, call.contiguous);
        if (position == SequencePosition::behind) {
            if (locked) lock.release();
            return false;
        }
        if (locked && !mark.writer.valid()) {
            if (position == SequencePosition::gap)
                ereport(ERROR, (report::own_error("sequence_gap"),
                                errmsg("gap in the sequence of source \"%s\"",
                                       report::c_string(call.key.key)),
                                errdetail("Expected number " INT64_FORMAT ", got " INT64_FORMAT ".",
                                          *mark.seq + 1, call.seq),
                                errhint("Handle the missing messages first, or skip them with "
                                        "\"contiguous => false\".")));
            advance_to(call, mark, bound);
            return true;
        }
        // With the lock, wait for a writer that bypassed it; without, for the lock's holder.
        if (locked)
            reacquire_after(lock, call.key.key, mark.writer, bound);
        else
            acquire(lock, call.key.key, bound);
        locked = true;
    }
}

}  // namespace

IDEM_FUNCTION(idem_advance) {
    require_writable("advance", read_by_streams);
    const Call call = read_advance_call(fcinfo);
    const bool moved = advance(call);
    pg::count(call.key.scope_id, moved ? pg::Counter::advances : pg::Counter::duplicates);
    PG_RETURN_BOOL(moved);
}

}  // namespace idem::api
