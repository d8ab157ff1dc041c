// idem.lookup(): the state of a key, without claiming it.
//
// It reads the newest committed row, not the transaction's snapshot, and asks for the key lock's
// holder. It takes no key lock and writes nothing. It also works on a standby, which does not see
// the claims in flight on the primary. With a wait, it looks again until the operation has ended.
#include "api/lookup.hpp"

#include "api/arguments.hpp"
#include "api/locked_key.hpp"
#include "pg/open_claims.hpp"
#include "pg/store/key_lock.hpp"

namespace idem::api {
namespace {

using core::Presence;
using core::Verdict;

enum Column {
    column_state,
    column_attempt,
    column_response,
    column_status,
    column_headers,
    column_body,
    column_error,
    column_created_at,
    column_expires_at,
    column_lease_end,
    column_holder_pid,
    column_since,
    column_redacted,
    column_completed_at,
    columns
};
static_assert(columns == lookup_columns);

// ---- The progress of an operation ---------------------------------------------------------------

struct Progress {
    // Of a claim with the same request, by what is committed: claim when there is no operation, and
    // in_flight when it has no record yet.
    Verdict verdict;
    pg::Found found{};
    std::optional<pg::Holder> holder{};  // the transaction that holds the key
    std::int32_t attempt = core::first_attempt;
};

bool has_ended(Verdict verdict) {
    return verdict == Verdict::replay || verdict == Verdict::failed;
}

bool has_unfinished_record(Verdict verdict) {
    return verdict == Verdict::leased || verdict == Verdict::take_over ||
           verdict == Verdict::exhausted;
}

// What another transaction does to a committed row counts when it commits.
Progress read_record(const pg::Key& key, const pg::Scope& scope) {
    pg::Found found = pg::probe(key, pg::Access::read);
    found.in_snapshot = true;
    if (found.presence == Presence::deleting) found.presence = Presence::committed;
    const TimestampTz now = GetCurrentTimestamp();
    return {core::decide(found_row(found, scope), core::SameRequest::yes, now), found};
}

Progress read_progress_of_others(const pg::Key& key, const pg::Scope& scope) {
    Progress progress = read_record(key, scope);
    if (has_ended(progress.verdict)) return progress;
    if (RecoveryInProgress()) {
        if (progress.verdict == Verdict::in_flight) progress.verdict = Verdict::claim;
        return progress;
    }
    const auto holder = pg::KeyLock(key.digest).holder();
    // A holder may have committed between the probe and the look for a holder.
    if (!holder && !has_unfinished_record(progress.verdict)) progress = read_record(key, scope);
    if (holder && progress.verdict == Verdict::claim) progress.verdict = Verdict::in_flight;
    progress.holder = holder;
    return progress;
}

Progress read_progress(const pg::Key& key, const pg::Scope& scope) {
    const pg::Claim* mine = pg::find_claim(key.digest);
    if (mine == nullptr || mine->phase != pg::Phase::open)
        return read_progress_of_others(key, scope);
    const pg::Holder here{.pid = MyProcPid, .since = mine->created};
    if (mine->token.kind == core::TokenKind::atomic)
        return {Verdict::in_flight, {}, here, static_cast<std::int32_t>(mine->token.attempt)};
    Progress progress = read_progress_of_others(key, scope);
    progress.holder = here;
    return progress;
}

// ---- The row ------------------------------------------------------------------------------------

LookupRow absent_row(const pg::Scope& scope, std::string_view tenant) {
    require_tenant(scope, tenant);
    if (RecoveryInProgress())
        ereport(NOTICE, (errmsg("key is not known on this standby"),
                         errdetail("A standby may lag behind its primary, and does not see claims "
                                   "in flight."),
                         errhint("Call idem.lookup() on the primary before you execute the "
                                 "operation.")));
    LookupRow row;
    row.set_text(column_state, "absent");
    return row;
}

LookupRow unfinished_row(const Progress& progress) {
    const pg::Holder holder = progress.holder.value_or(pg::Holder{});
    LookupRow row;
    const bool exhausted = progress.verdict == Verdict::exhausted;
    row.set_text(column_state, exhausted ? "exhausted" : "in_progress");
    row.set_int(column_attempt, progress.attempt);
    row.set_int(column_holder_pid, holder.pid);
    row.set_time(column_since, holder.since);
    if (!has_unfinished_record(progress.verdict)) return row;
    const pg::Record& record = progress.found.record;
    row.set_int(column_attempt, record.attempt());
    row.set_time(column_since, record.created());
    row.set_time(column_created_at, record.created());
    row.set_time(column_expires_at, record.expires());
    row.set_time(column_lease_end, record.lease_end());
    if (exhausted) row.set_pointer(column_error, record.error());
    return row;
}

LookupRow finished_row(const pg::Record& stored, const pg::Scope& scope) {
    pg::Record record = stored;
    pg::hide_expired_answer(record, scope.answer_ttl, GetCurrentTimestamp());
    LookupRow row;
    row.set_text(column_state, record.state() == core::State::completed ? "completed" : "failed");
    set_finished(row, record,
                 {column_attempt, column_created_at, column_redacted, column_completed_at});
    row.set_time(column_since, record.created());
    return row;
}

// ---- Waiting ------------------------------------------------------------------------------------

// No attempt is left, and no transaction is at work: only an administrator could change that.
bool is_abandoned(const Progress& progress) {
    return progress.verdict == Verdict::exhausted && !progress.holder &&
           !progress.found.writer.valid();
}

// Whether the operation may end while this transaction waits. An absent key is of interest only on
// a standby, where it may still arrive. A key that this transaction holds stays as it is.
bool is_awaited(const pg::Key& key, const Progress& progress) {
    if (has_ended(progress.verdict) || progress.found.presence == Presence::own) return false;
    if (is_abandoned(progress)) return false;
    if (RecoveryInProgress()) return true;
    return progress.verdict != Verdict::claim && !pg::KeyLock(key.digest).is_held();
}

// Waits for what may end the operation: a transaction, if one is known, or else an event. It takes
// no key lock, which would keep the key from a claim. Returns false when the bound came first.
bool wait_for_change(const pg::Key& key, const Progress& progress, pg::WaitBound& bound) {
    const bool running = progress.verdict == Verdict::leased;
    if (!RecoveryInProgress()) {
        if (progress.found.writer.valid()) return bound.wait_for(progress.found.writer);
        // While a lease runs, a transaction that does not write the row releases the lock soon.
        if (progress.holder && !running) return pg::KeyLock(key.digest).wait_for_holder(bound);
    }
    return bound.wait_for(pg::key_event(key.digest),
                          running ? *progress.found.record.lease_end() : DT_NOEND);
}

Progress read_until_ended(const pg::Key& key, const pg::Scope& scope, std::int64_t wait) {
    pg::WaitBound bound(wait);
    const MemoryContext memory =
        AllocSetContextCreate(CurrentMemoryContext, "idem lookup", ALLOCSET_SMALL_SIZES);
    for (;;) {
        MemoryContextReset(memory);  // a call may read many times
        const MemoryContext before = MemoryContextSwitchTo(memory);
        const Progress progress = read_progress(key, scope);
        const bool again = is_awaited(key, progress) && wait_for_change(key, progress, bound);
        MemoryContextSwitchTo(before);
        if (again) continue;
        pg::withdraw_wait();
        return progress;
    }
}

}  // namespace

LookupRow look_up(const pg::Key& key, const pg::Scope& scope, std::int64_t wait) {
    const Progress progress =
        wait > 0 ? read_until_ended(key, scope, wait) : read_progress(key, scope);
    if (has_ended(progress.verdict)) return finished_row(progress.found.record, scope);
    if (progress.verdict == Verdict::claim) return absent_row(scope, key.tenant);
    return unfinished_row(progress);
}

IDEM_FUNCTION(idem_lookup) {
    require_leader("lookup");
    const auto wait = pg::duration_arg(fcinfo, 3, "wait", pg::Sign::not_negative);
    const KeyCall call = read_key(fcinfo, 2, "lookup");
    return look_up(call.key, *call.scope, wait.value_or(0)).as_result_of(fcinfo);
}

}  // namespace idem::api
