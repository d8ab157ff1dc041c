#include "api/claiming.hpp"

#include "api/arguments.hpp"
#include "api/limits.hpp"
#include "api/new_key_rules.hpp"
#include "core/duration.hpp"
#include "pg/compat.hpp"
#include "pg/entropy.hpp"
#include "pg/guc.hpp"
#include "pg/key_lock.hpp"
#include "pg/request.hpp"
#include "pg/stats.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;
using core::Verdict;
using pg::Counter;

using core::first_attempt;

struct Look {
    Verdict verdict;
    pg::Found found;
    TimestampTz now;
};

Verdict judge(const ClaimCall& call, const pg::Found& found, TimestampTz now) {
    const bool comparable =
        found.presence != core::Presence::absent && found.presence != core::Presence::inserting;
    return core::decide(
        {
            .presence = found.presence,
            .in_snapshot = found.in_snapshot,
            .same_request =
                comparable && pg::same_request(call.request, found.record.fingerprint, *call.scope),
            .state = found.record.state,
            .expires = found.record.expires,
            .lease_end = found.record.lease_end.value_or(0),
            .attempt = found.record.attempt,
            .max_attempts = call.scope->max_attempts,
        },
        now);
}

// Read the clock after the probe, the probe after the lock: so no decision is older than the lock.
Look look(const ClaimCall& call, bool locked) {
    const pg::Records records = locked ? pg::Records::to_write() : pg::Records::to_read();
    const pg::Found found = pg::probe(records, call.name);
    records.close();
    const TimestampTz now = GetCurrentTimestamp();
    return {judge(call, found, now), found, now};
}

// As look(), for whoever looks time and again: what the last look read is freed first.
Look look_again(const ClaimCall& call, bool locked, MemoryContext& memory) {
    if (memory == nullptr)
        memory = AllocSetContextCreate(CurrentMemoryContext, "idem look", ALLOCSET_SMALL_SIZES);
    MemoryContextReset(memory);
    const MemoryContext before = MemoryContextSwitchTo(memory);
    const Look seen = look(call, locked);
    MemoryContextSwitchTo(before);
    return seen;
}

// The row of a leased claim: the effect may lie outside the database, so it must be there before.
pg::Writing write_lease(const ClaimCall& call, const pg::Claim& claim, const pg::Record& old,
                        const pg::WaitBound& bound) {
    const TimestampTz lease_end = GetCurrentTimestamp() + *call.lease;
    const pg::Record record{
        .created = claim.created,
        .expires = lease_end + claim.ttl,
        .lease_end = lease_end,
        .nonce = static_cast<std::int64_t>(claim.token.random),
        .attempt = static_cast<std::int32_t>(claim.token.attempt),
        .state = core::State::in_progress,
        .fingerprint = claim.fingerprint,
        .recovery_point = old.recovery_point,
        .recovery_state = old.recovery_state,
        .status = std::nullopt,
        .headers = nullptr,
        .response = nullptr,
        .body = nullptr,
        .error = nullptr,
    };
    const pg::Records records = pg::Records::to_write();
    const pg::Writing writing = pg::write_record(records, call.name, record, claim.over, bound);
    records.close();
    if (writing.written == pg::Written::yes) pg::commit_durably();
    return writing;
}

Claiming in_progress(const report::Holder& holder) {
    const TimestampTz now = GetCurrentTimestamp();
    const std::int64_t age = now - holder.since.value_or(now);
    return {.outcome = Outcome::in_progress,
            .holder = holder,
            .retry_after = holder.lease_end ? core::retry_after(age, *holder.lease_end - now)
                                            : core::retry_after(age)};
}

Claiming claimed(const ClaimCall& call, const Look& seen, const pg::WaitBound& bound) {
    const bool taken_over = seen.verdict == Verdict::take_over;
    const pg::Record old = taken_over ? seen.found.record : pg::Record{};
    pg::Claim claim{};
    claim.token = {call.lease ? core::TokenKind::leased : core::TokenKind::atomic, call.name.digest,
                   static_cast<std::uint32_t>(taken_over ? old.attempt + 1 : first_attempt),
                   pg::random_bits()};
    claim.over =
        seen.found.presence == core::Presence::absent ? pg::Over::nothing : pg::Over::outlived;
    claim.scope_id = call.scope->id;
    claim.scope_name = call.scope->name;
    claim.tenant = call.name.tenant;
    claim.key = call.name.key;
    claim.fingerprint =
        taken_over ? old.fingerprint : pg::new_fingerprint(call.request, *call.scope);
    claim.created = taken_over ? old.created : seen.now;
    claim.ttl = call.ttl;
    if (call.lease) {
        const pg::Writing writing = write_lease(call, claim, old, bound);
        if (writing.written == pg::Written::no)
            return in_progress(pg::holder_of(writing.in_the_way));
    }
    pg::count(call.scope->id, taken_over ? Counter::takeovers : Counter::claims);
    if (!taken_over && claim.over == pg::Over::outlived)
        pg::count(call.scope->id, Counter::expired_reused);
    return {.outcome = Outcome::claimed, .claim = &pg::remember_claim(claim), .record = old};
}

// The key is free and ours: what may still stand against the claim. A takeover makes no new record,
// so that only the transaction's own limit counts.
Claiming granted(const ClaimCall& call, const Look& seen, const pg::WaitBound& bound) {
    const bool is_new = seen.verdict == Verdict::claim;
    if (is_new && is_out_of_memory(*call.scope, call.name.key, seen.now, call.ttl))
        return {.outcome = Outcome::stale_key};
    if (is_new) check_strength(*call.scope, call.name.key);
    if (pg::claims_held() >= pg::guc::max_open_claims) return {.outcome = Outcome::too_many};
    const std::int64_t wait =
        is_new ? charge_claim(*call.scope, call.name.tenant, seen.now) : std::int64_t{0};
    if (wait > 0) return {.outcome = Outcome::limited, .retry_after = wait};
    return claimed(call, seen, bound);
}

Claiming leased(const pg::Record& record) {
    return in_progress({std::nullopt, record.created, record.lease_end});
}

Claiming answered(const Look& seen) {
    switch (seen.verdict) {
        case Verdict::replay:
            return {.outcome = Outcome::completed, .record = seen.found.record};
        case Verdict::failed:
            return {.outcome = Outcome::failed, .record = seen.found.record};
        case Verdict::exhausted:
            return {.outcome = Outcome::exhausted, .record = seen.found.record};
        case Verdict::conflict:
            return {.outcome = Outcome::conflict};
        default:
            report::serialization_failure(
                "The key's record was committed after this transaction's snapshot was taken.");
    }
}

bool grants(Verdict verdict) {
    return verdict == Verdict::claim || verdict == Verdict::take_over;
}

// Whether somebody must end before the claim may go on. An expired row that is being deleted binds
// nothing, but whoever writes at once would have to wait for it with the key lock in hand.
bool is_in_flight(const ClaimCall& call, const Look& seen) {
    if (seen.verdict == Verdict::in_flight) return true;
    return grants(seen.verdict) && call.writes_at_once &&
           seen.found.presence == core::Presence::deleting;
}

// Also tells since when it has waited; 0: not at all.
Claiming settle(const ClaimCall& call, TimestampTz& waiting_since) {
    const pg::Claim* mine = pg::find_claim(call.name.digest);
    if (mine != nullptr && mine->phase == pg::Phase::open) return {.outcome = Outcome::open_here};

    const TimestampTz start = GetCurrentTimestamp();
    const pg::WaitBound bound(call.wait);
    pg::KeyLock lock(call.name.digest);
    bool locked = lock.try_acquire();
    MemoryContext memory = nullptr;
    for (Look seen = look(call, locked);; seen = look_again(call, locked, memory)) {
        const bool in_flight = is_in_flight(call, seen);
        if (locked && grants(seen.verdict) && !in_flight) {
            const Claiming result = granted(call, seen, bound);
            if (result.outcome != Outcome::claimed) lock.release();
            return result;
        }
        if (!grants(seen.verdict) && !in_flight && seen.verdict != Verdict::leased) {
            if (locked) lock.release();
            return answered(seen);
        }
        if (call.wait > 0) waiting_since = start;
        if (seen.verdict == Verdict::leased) {
            if (locked) lock.release();
            locked = false;
            if (!bound.nap(*seen.found.record.lease_end)) return leased(seen.found.record);
        } else if (locked) {
            // A writer that went past the lock. It may come to claim the key as well.
            lock.release();
            if (!bound.wait_for(seen.found.working))
                return in_progress(pg::holder_of(seen.found.working.xid));
            locked = lock.try_acquire();
        } else {
            // The lock's holder is at the key.
            locked = lock.acquire(bound);
            if (!locked) return in_progress(lock.holder().value_or(report::Holder{}));
        }
    }
}

// For those who run the server; the caller is told in his own way.
void note_conflict(const ClaimCall& call) {
    pg::count(call.scope->id, Counter::conflicts);
    if (pg::guc::log_conflicts != 0)
        report::log_conflict(pg::guc::log_conflicts, call.scope->name, call.name.tenant,
                             call.name.key);
}

// A grant is counted where it is made.
void count_outcome(const ClaimCall& call, Outcome outcome) {
    switch (outcome) {
        case Outcome::claimed:
            return;
        case Outcome::completed:
        case Outcome::failed:
        case Outcome::exhausted:
            return pg::count(call.scope->id, Counter::replays);
        case Outcome::in_progress:
        case Outcome::open_here:
            return pg::count(call.scope->id, Counter::in_flight);
        case Outcome::conflict:
            return note_conflict(call);
        case Outcome::stale_key:
            return pg::count(call.scope->id, Counter::stale);
        case Outcome::too_many:
        case Outcome::limited:
            return pg::count(call.scope->id, Counter::limited);
    }
}

void count_wait(const ClaimCall& call, TimestampTz since) {
    pg::count(call.scope->id, Counter::waits);
    const TimestampTz waited = GetCurrentTimestamp() - since;
    pg::count(call.scope->id, Counter::wait_time, std::max<TimestampTz>(waited, 0));
}

}  // namespace

ClaimCall claim_call(const pg::Scope& scope, std::string_view key, std::string_view tenant,
                     Jsonb* request, std::optional<std::int64_t> ttl,
                     std::optional<std::int64_t> wait) {
    const pg::KeyName name = key_name(scope, tenant, key);
    if (scope.request_required && request == nullptr) report::missing_request(scope.name);
    return {.scope = &scope,
            .name = name,
            .request = request,
            .ttl = ttl.value_or(scope.ttl),
            .wait = wait.value_or(scope.wait),
            .lease = std::nullopt};
}

Claiming claim_key(const ClaimCall& call) {
    TimestampTz waiting_since = 0;
    const Claiming result = settle(call, waiting_since);
    if (waiting_since != 0) count_wait(call, waiting_since);
    count_outcome(call, result.outcome);
    return result;
}

void refuse(const ClaimCall& call, const Claiming& result) {
    const std::string_view key = call.name.key;
    switch (result.outcome) {
        case Outcome::failed:
            report::stored_failure(key, result.record.error);
        case Outcome::exhausted:
            report::attempts_exhausted(key, result.record.attempt);
        case Outcome::in_progress:
            report::in_progress(key, result.holder, result.retry_after, call.wait_set_by);
        case Outcome::open_here:
            report::claimed_by_this_transaction(key);
        case Outcome::conflict:
            report::key_conflict(key);
        case Outcome::stale_key:
            refuse_out_of_memory(key);
        case Outcome::too_many:
            report::too_many_open_claims(pg::guc::max_open_claims);
        case Outcome::limited:
            report::too_many_claims_per_minute(call.scope->name, *call.scope->claims_per_minute,
                                               result.retry_after);
        case Outcome::claimed:
        case Outcome::completed:
            break;
    }
    elog(ERROR, "outcome %d is not a refusal", static_cast<int>(result.outcome));
    pg_unreachable();
}

}  // namespace idem::api
