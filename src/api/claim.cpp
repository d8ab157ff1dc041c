// idem.claim() and idem.try_claim(), and the protocol that execute and once share with them.
//
// Read it beside "The lock protocol" in src/README.md. Parts come before what they are used by.
#include "api/claim.hpp"

#include "api/locked_key.hpp"
#include "api/lookup.hpp"
#include "pg/server/failure.hpp"
#include "pg/server/guc.hpp"
#include "pg/server/test_seam.hpp"
#include "pg/shared/stats.hpp"
#include "pg/store/key_lock.hpp"
#include "pg/store/token.hpp"

namespace idem::api {
namespace {

using core::Verdict;
using pg::Counter;

// ---- 1. The state of the key --------------------------------------------------------------------

struct KeyState {
    Verdict verdict;
    pg::Found found;
    TimestampTz now;
};

// A row that is absent or uncommitted has no fingerprint to compare, and none is needed. Nor is
// that of an expired row, whose secret may be gone.
bool is_same_request(const ClaimCall& call, const pg::Found& found, TimestampTz now) {
    const bool comparable = found.presence != core::Presence::absent &&
                            found.presence != core::Presence::inserting &&
                            core::binds(found.presence, found.record.expires(), now);
    return comparable &&
           pg::same_request(call.request, found.record.fingerprint(),
                            pg::request_list(*call.scope, found.record.fingerprint()));
}

// The probe follows the lock, and the clock is read after the probe, so that no decision rests on
// what was true before the lock was granted.
KeyState read_state(const ClaimCall& call, bool locked) {
    const pg::Records records(call.key.table, locked ? pg::Access::write : pg::Access::read);
    if (locked) pg::check_place(call.key.scope_id, call.key.table);
    records.check_tenant(call.key.tenant);
    const pg::Found found = pg::probe(records, call.key);
    records.close();
    const TimestampTz now = GetCurrentTimestamp();
    const auto same = core::SameRequest{is_same_request(call, found, now)};
    return {core::decide(found_row(found, *call.scope), same, now), found, now};
}

// As read_state(), but frees what the previous call has read: a claim may wait and read many times.
KeyState read_state_again(const ClaimCall& call, bool locked, MemoryContext& memory) {
    if (memory == nullptr)
        memory = AllocSetContextCreate(CurrentMemoryContext, "idem claim", ALLOCSET_SMALL_SIZES);
    MemoryContextReset(memory);
    const MemoryContext before = MemoryContextSwitchTo(memory);
    const KeyState state = read_state(call, locked);
    MemoryContextSwitchTo(before);
    return state;
}

bool is_free(Verdict verdict) {
    return verdict == Verdict::claim || verdict == Verdict::take_over;
}

// Whether another transaction must end before the claim can go on. An expired row that is being
// deleted does not bind the key, but a call that writes at once would have to wait for the
// deletion while it holds the key lock.
bool is_in_flight(const ClaimCall& call, const KeyState& state) {
    if (state.verdict == Verdict::in_flight) return true;
    return is_free(state.verdict) && (call.lease || call.completes) &&
           state.found.presence == core::Presence::deleting;
}

// ---- 2. A new claim -----------------------------------------------------------------------------

// What another worker will need to finish the operation, or a conflict to be explained. A takeover
// keeps the request that is stored: later ones may differ in members that the scope excludes from
// the comparison.
varlena* request_to_store(const ClaimCall& call, const pg::Record& old) {
    const bool stores = call.scope->store_request != pg::StoreRequest::never;
    if (old.stored_request() != nullptr || !stores) return old.stored_request();
    check_size("request", *call.scope, {call.request});
    return reinterpret_cast<varlena*>(call.request);
}

// An atomic claim has no row yet, so its request is kept in memory, and not as the row of another
// attempt stores it.
Jsonb* request_to_remember(const ClaimCall& call, const pg::Record& old) {
    if (call.lease || call.scope->store_request != pg::StoreRequest::always) return nullptr;
    varlena* request = request_to_store(call, old);
    return request == nullptr ? nullptr : DatumGetJsonbP(PointerGetDatum(request));
}

// A takeover keeps the creation time, the fingerprint and the request of the operation that it
// takes over. No rule for new keys refuses it, but it must not leave a record that lives for less
// than the scope promises. old is the record of the attempt taken over, or none.
pg::Claim new_claim(const ClaimCall& call, const KeyState& state, const pg::Record& old) {
    const bool taken_over = state.verdict == Verdict::take_over;
    const std::int32_t attempt = taken_over ? old.attempt() + 1 : core::first_attempt;
    pg::Claim claim(call.key, call.scope->name,
                    {call.lease ? core::TokenKind::leased : core::TokenKind::atomic,
                     call.key.digest, static_cast<std::uint32_t>(attempt), pg::random_bits(),
                     call.lease ? call.key.table : pg::common_records});
    claim.replaces = state.found.presence != core::Presence::absent;
    claim.fingerprint = taken_over ? old.fingerprint()
                                   : pg::new_fingerprint(call.request, call.scope->request_exclude);
    claim.request = request_to_remember(call, old);
    claim.created = taken_over ? old.created() : state.now;
    claim.ttl = std::max(call.ttl, least_ttl(*call.scope));
    return claim;
}

pg::NewRecord leased_record(const ClaimCall& call, const pg::Claim& claim, const pg::Record& old) {
    const bool taken_over = claim.token.attempt > core::first_attempt;
    pg::NewRecord record = taken_over ? pg::NewRecord(old) : pg::NewRecord(call.key);
    record.set_created(claim.created);
    record.set_lease_end(GetCurrentTimestamp() + *call.lease);
    record.set_expires(*record.lease_end() + claim.ttl);
    record.set_nonce(static_cast<std::int64_t>(claim.token.random));
    record.set_attempt(static_cast<std::int32_t>(claim.token.attempt));
    record.set_state(core::State::in_progress);
    record.set_fingerprint(claim.fingerprint);
    record.set_request(request_to_store(call, old));
    return record;
}

ClaimResult held_by(const pg::Holder& holder, const pg::WaitBound& bound) {
    return {.outcome = Outcome::in_progress,
            .holder = holder,
            .retry_after = retry_after(holder),
            .wait = bound.set_by()};
}

// Makes the key this transaction's: in its memory, and for a leased claim also in a row.
ClaimResult make_claim(const ClaimCall& call, const KeyState& state, pg::WaitBound& bound) {
    ClaimResult result{.outcome = Outcome::claimed};
    if (state.verdict == Verdict::take_over) result.record = state.found.record;
    const pg::Claim claim = new_claim(call, state, result.record);
    if (call.lease) {
        const pg::NewRecord record = leased_record(call, claim, result.record);
        const pg::ChangeResult writing = pg::write_over(call.key.table, record, state.found, bound);
        if (writing.result == TM_WouldBlock)
            return held_by(pg::holder_of(writing.in_the_way), bound);
        // The operation may have effects outside the database, so its row must be durable before
        // the caller goes on.
        pg::commit_durably();
        result.expires = record.expires();
    }
    count_claim(*call.scope, call.key, state.found, state.verdict);
    result.claim = &pg::remember_claim(claim);
    return result;
}

void check_new_claim(const ClaimCall& call) {
    require_tenant(*call.scope, call.key.tenant);
    if (call.scope->request_required && call.request == nullptr)
        ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
                        errmsg("argument \"request\" must not be null"),
                        errdetail("Scope \"%s\" requires a request.", call.scope->name),
                        errhint("Pass the client's request as \"request\".")));
    if (const std::int64_t least = least_ttl(*call.scope); call.ttl < least)
        report::invalid_argument(
            "ttl",
            psprintf("Scope \"%s\" remembers every key for at least %s.", call.scope->name,
                     DatumGetCString(DirectFunctionCall1(interval_out,
                                                         PointerGetDatum(pg::interval_of(least))))),
            "Pass a longer \"ttl\", or leave it out to get the scope's own.");
}

// The key is free, and this transaction has its lock: what a claim must still pass. A takeover adds
// no record, and the scope may have got its rules after the key got its record, so they hold for
// new keys only.
ClaimResult admit(const ClaimCall& call, const KeyState& state, pg::WaitBound& bound) {
    Assert(is_free(state.verdict));
    check_open_claims(call.scope->id);
    if (state.verdict == Verdict::claim) {
        check_new_claim(call);
        if (is_stale_key(*call.scope, call.key.key, state.now))
            return {.outcome = Outcome::stale_key};
        const pg::Charge charge =
            charge_new_key(*call.scope, call.key.tenant, call.key.key, state.now);
        if (charge.is_refused())
            return {.outcome = charge.has_room ? Outcome::limited : Outcome::no_room,
                    .retry_after = charge.wait};
    }
    return make_claim(call, state, bound);
}

// ---- 3. A finished key --------------------------------------------------------------------------

ClaimResult stored_answer(const ClaimCall& call, const KeyState& state, Outcome outcome) {
    ClaimResult result{.outcome = outcome, .record = state.found.record};
    pg::hide_expired_answer(result.record, call.scope->answer_ttl, state.now);
    return result;
}

// The record decides the outcome; the lock is not needed.
ClaimResult resolve(const ClaimCall& call, const KeyState& state) {
    switch (state.verdict) {
        case Verdict::replay:
            return stored_answer(call, state, Outcome::completed);
        case Verdict::failed:
            return stored_answer(call, state, Outcome::failed);
        case Verdict::exhausted:
            return {.outcome = Outcome::exhausted,
                    .record = state.found.record,
                    .retry_after = core::retry_after_exhausted};
        case Verdict::conflict:
            return {.outcome = Outcome::conflict,
                    .conflict =
                        explain_conflict(*call.scope, call.request, state.found.record, state.now)};
        case Verdict::serialization_failure:
            refuse_unseen();
        case Verdict::claim:
        case Verdict::take_over:
        case Verdict::in_flight:
        case Verdict::leased:
            break;
    }
    elog(ERROR, "verdict %d does not resolve a claim", static_cast<int>(state.verdict));
}

// ---- 4. The protocol ----------------------------------------------------------------------------

// Reads the state of the key until it decides the claim, or until a wait reaches the bound. Sets
// waiting_since when it begins to wait.
ClaimResult claim_within_bound(const ClaimCall& call, TimestampTz& waiting_since) {
    pg::WaitBound bound(call.wait,
                        call.completes ? report::WaitSetBy::scope : report::WaitSetBy::argument);
    pg::KeyLock lock(call.key.digest);
    bool locked = lock.try_acquire();
    MemoryContext memory = nullptr;
    for (KeyState state = read_state(call, locked);;
         state = read_state_again(call, locked, memory)) {
        const bool leased = state.verdict == Verdict::leased;
        const bool in_flight = is_in_flight(call, state);
        if (!leased && !in_flight && !is_free(state.verdict)) {
            if (locked) lock.release();
            return resolve(call, state);
        }
        if (!leased && !in_flight && locked) {
            const ClaimResult result = pg::at_seam(pg::seam::Event::granting)
                                           ? held_by(pg::Holder{}, bound)
                                           : admit(call, state, bound);
            if (result.outcome != Outcome::claimed) lock.release();
            return result;
        }
        if (call.wait > 0 && waiting_since == 0) waiting_since = GetCurrentTimestamp();
        if (leased) {
            // The lease's holder needs the lock to complete.
            const pg::Record& record = state.found.record;
            if (locked) lock.release();
            locked = false;
            if (!bound.wait_for(pg::key_event(call.key.digest), *record.lease_end()))
                return held_by(lease_of(record), bound);
        } else if (!locked) {
            locked = lock.acquire(bound);
            if (!locked) return held_by(lock.holder().value_or(pg::Holder{}), bound);
        } else {
            // The writer bypassed the lock. Its transaction may claim the key as well, so the lock
            // is released before the wait.
            lock.release();
            if (!bound.wait_for(state.found.writer))
                return held_by(pg::holder_of(state.found.writer.xid), bound);
            locked = lock.try_acquire();
        }
    }
}

// What the column "outcome" shows, and what counts the outcome unless the code that decides it
// does; in the order of Outcome.
struct Shown {
    const char* name;
    std::optional<Counter> counter{};
};
constexpr Shown shown[] = {{"claimed"},
                           {"completed", Counter::replays},
                           {"failed", Counter::replays},
                           {"exhausted", Counter::exhausted},
                           {"in_progress", Counter::in_flight},
                           {"in_progress", Counter::in_flight},
                           {"conflict", Counter::conflicts},
                           {"stale_key"},
                           {"limited"},
                           {"limited"}};
static_assert(std::size(shown) == static_cast<std::size_t>(Outcome::no_room) + 1);

const Shown& shown_of(const ClaimResult& result) {
    return shown[static_cast<std::size_t>(result.outcome)];
}

void count_wait(const ClaimCall& call, TimestampTz since) {
    const TimestampTz waited = GetCurrentTimestamp() - since;
    pg::count(call.scope->id, Counter::waits);
    pg::count(call.scope->id, Counter::wait_time, std::max<TimestampTz>(waited, 0));
    pg::observe(call.scope->id, pg::Duration::wait, waited);
}

void note_outcome(const ClaimCall& call, const ClaimResult& result) {
    if (const auto counter = shown_of(result).counter) pg::count(call.scope->id, *counter);
    if (shown_of(result).counter == Counter::replays) count_if_late(call.scope->id, result.record);
    if (result.outcome == Outcome::claimed) (void)pg::at_seam(pg::seam::Event::claimed);
    if (result.outcome == Outcome::conflict) {
        (void)pg::at_seam(pg::seam::Event::conflict);
        if (pg::guc::log_conflicts != 0) log_conflict(*call.scope, call.key, result.conflict);
    }
    if (result.outcome == Outcome::exhausted)
        report::log_transition("attempts are exhausted", call.scope->name, call.key.tenant,
                               call.key.key, result.record.attempt());
}

// Undecided: neither the caller nor another one is told that it failed.
[[noreturn]] void refuse_exhausted(std::string_view key, const pg::Record& record,
                                   std::int64_t retry_after) {
    ereport(ERROR,
            (report::own_error("attempts_exhausted"), report::errretry(retry_after),
             report::errsince(record.created()),
             errmsg("operation \"%s\" has no attempts left", report::c_string(key)),
             errdetail("Attempt %d was the last that the scope's \"max_attempts\" allows, and it "
                       "has ended without an answer. It may have had effects.",
                       record.attempt()),
             errhint("The outcome is undecided: keep the key, and retry after %.1f seconds. An "
                     "administrator can allow one more attempt, which continues from the recovery "
                     "point, with idem.revoke().",
                     report::seconds_of(retry_after))));
}

}  // namespace

// Retries come within minutes. What comes later may be another operation under the same key.
void count_if_late(std::int32_t scope_id, const pg::Record& replayed) {
    constexpr std::int64_t late = 5 * SECS_PER_MINUTE * USECS_PER_SEC;
    const auto completed = replayed.completed_at();
    if (completed && GetCurrentStatementStartTimestamp() - *completed > late)
        pg::count(scope_id, Counter::late_replays);
}

void count_claim(const pg::Scope& scope, const pg::Key& key, const pg::Found& found,
                 Verdict verdict) {
    const bool taken_over = verdict == Verdict::take_over;
    pg::count(scope.id, taken_over ? Counter::takeovers : Counter::claims);
    if (!taken_over && found.presence != core::Presence::absent)
        pg::count(scope.id, Counter::expired_reused);
    if (!taken_over) return;
    const pg::Record& old = found.record;
    if (old.nonce())
        report::log_transition("lease has lapsed", scope.name, key.tenant, key.key, old.attempt());
    report::log_transition("operation was taken over", scope.name, key.tenant, key.key,
                           old.attempt() + 1);
}

void refuse_claim(const ClaimCall& call, const ClaimResult& result) {
    const std::string_view key = call.key.key;
    switch (result.outcome) {
        case Outcome::failed:
            pg::raise_failure(key, result.record.error(), result.record.completed_at(),
                              pg::is_of_any(result.record.fingerprint()));
        case Outcome::exhausted:
            refuse_exhausted(key, result.record, result.retry_after);
        case Outcome::in_progress:
            report::in_progress(key, result.holder, result.retry_after, result.wait);
        case Outcome::open_here:
            report::claimed_by_this_transaction(key);
        case Outcome::conflict:
            refuse_conflict(key, result.conflict);
        case Outcome::stale_key:
            refuse_stale_key(key);
        case Outcome::limited:
        case Outcome::no_room:
            refuse_limited(*call.scope, {result.outcome == Outcome::limited, result.retry_after});
        case Outcome::claimed:
        case Outcome::completed:
            break;
    }
    elog(ERROR, "outcome %d is not a refusal", static_cast<int>(result.outcome));
}

ClaimResult claim_key(const ClaimCall& call) {
    TimestampTz waiting_since = 0;
    const ClaimResult result = is_open_here(call.key.digest)
                                   ? ClaimResult{.outcome = Outcome::open_here}
                                   : claim_within_bound(call, waiting_since);
    Assert((result.outcome == Outcome::claimed) == (result.claim != nullptr));
    if (waiting_since != 0) {
        pg::withdraw_wait();
        count_wait(call, waiting_since);
    }
    note_outcome(call, result);
    return result;
}

ClaimResult take_over(const ClaimCall& call, const pg::Found& found, TimestampTz now) {
    Assert(found.record.state() == core::State::in_progress && call.lease);
    pg::WaitBound no_wait(0);
    return admit(call, {Verdict::take_over, found, now}, no_wait);
}

namespace {

// ---- 5. The SQL functions -----------------------------------------------------------------------

enum Argument { arg_request = arg_key + 1, arg_tenant, arg_ttl, arg_lease, arg_wait };

enum Column {
    column_claimed,
    column_outcome,
    column_token,
    column_attempt,
    column_response,
    column_status,
    column_headers,
    column_body,
    column_error,
    column_retry_after,
    column_recovery_point,
    column_recovery_state,
    column_created_at,
    column_expires_at,
    column_redacted,
    column_differs,
    column_completed_at,
    columns
};
using Result = pg::Row<columns>;

// An outcome that is neither claimed nor completed: claim() raises it, try_claim() returns it.
enum class Refusals { raised, returned };

// Checks the arguments in the order that the reference promises: their form, the scope, the
// caller's permission, the scope's rules.
ClaimCall read_claim_call(FunctionCallInfo fcinfo, Refusals refusals, const char* function) {
    const auto ttl = pg::duration_arg(fcinfo, arg_ttl, "ttl", pg::Sign::positive);
    const auto lease = pg::duration_arg(fcinfo, arg_lease, "lease", pg::Sign::positive);
    const auto wait = pg::duration_arg(fcinfo, arg_wait, "wait", pg::Sign::not_negative);
    const KeyCall key_call = read_key(fcinfo, arg_tenant, function);
    const std::int64_t default_wait = refusals == Refusals::raised ? key_call.scope->wait : 0;
    return {key_call, pg::jsonb_arg(fcinfo, arg_request), ttl.value_or(key_call.scope->ttl),
            wait.value_or(default_wait), lease};
}

void set_claim(Result& row, const ClaimResult& result) {
    const pg::Claim& claim = *result.claim;
    row.set_text(column_token, pg::token_text(claim.token).view());
    row.set_int(column_attempt, static_cast<std::int32_t>(claim.token.attempt));
    row.set_pointer(column_recovery_point, result.record.recovery_point());
    row.set_pointer(column_recovery_state, result.record.recovery_state());
    row.set_time(column_created_at, claim.created);
}

Result claim_row(const ClaimResult& result) {
    Result row;
    row.set(column_claimed, BoolGetDatum(result.outcome == Outcome::claimed));
    row.set_text(column_outcome, shown_of(result).name);
    switch (result.outcome) {
        case Outcome::claimed:
            set_claim(row, result);
            break;
        case Outcome::exhausted:
            row.set_pointer(column_retry_after, pg::interval_of(result.retry_after));
            [[fallthrough]];
        case Outcome::completed:
        case Outcome::failed:
            set_finished(row, result.record,
                         {column_attempt, column_created_at, column_redacted, column_completed_at});
            break;
        case Outcome::in_progress:
            row.set_time(column_created_at, result.holder.since);
            [[fallthrough]];
        case Outcome::limited:
        case Outcome::no_room:
            row.set_pointer(column_retry_after, pg::interval_of(result.retry_after));
            break;
        case Outcome::conflict:
            row.set_pointer(column_differs, result.conflict.differs);
            break;
        case Outcome::open_here:
        case Outcome::stale_key:
            break;
    }
    return row;
}

Datum claim(FunctionCallInfo fcinfo, Refusals refusals, const char* function) {
    require_writable(function, read_by_lookup);
    const ClaimCall call = read_claim_call(fcinfo, refusals, function);
    const ClaimResult result = claim_key(call);
    const bool refused = result.outcome != Outcome::claimed && result.outcome != Outcome::completed;
    if (refused && refusals == Refusals::raised) refuse_claim(call, result);
    return claim_row(result).as_result_of(fcinfo);
}

}  // namespace

IDEM_FUNCTION(idem_claim) {
    return claim(fcinfo, Refusals::raised, "claim");
}

IDEM_FUNCTION(idem_try_claim) {
    return claim(fcinfo, Refusals::returned, "try_claim");
}

}  // namespace idem::api
