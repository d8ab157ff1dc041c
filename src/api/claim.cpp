// idem.claim() and idem.try_claim(), and the protocol that execute and once share with them.
//
// Read it beside "The lock protocol" in src/README.md. The parts come before what they are used by:
//   1. One look             probe the index and let the core decide
//   2. Granting             what a free key must pass, and what makes it the caller's
//   3. Answering            what a caller gets that does not become the owner
//   4. Statistics
//   5. The protocol         look at the key until it can be granted or answered
//   6. The SQL functions    arguments in, one row out
#include "api/claim.hpp"

#include "api/arguments.hpp"
#include "api/finish.hpp"
#include "api/locked_key.hpp"
#include "pg/boundary.hpp"
#include "pg/document.hpp"
#include "pg/failure.hpp"
#include "pg/guc.hpp"
#include "pg/lock.hpp"
#include "pg/secret.hpp"
#include "pg/stats.hpp"
#include "pg/test_seam.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;
using core::Verdict;
using pg::Counter;

}  // namespace

// ---- 1. One look --------------------------------------------------------------------------------

core::Verdict judge(const pg::Found& found, bool same_request, const pg::Scope& scope,
                    TimestampTz now) {
    return core::decide(
        {
            .presence = found.presence,
            .in_snapshot = found.in_snapshot,
            .same_request = same_request,
            .state = found.record.state,
            .expires = found.record.expires,
            .lease_end = found.record.lease_end.value_or(0),
            .attempt = found.record.attempt,
            .max_attempts = scope.max_attempts,
            .extra_attempts = found.record.extra_attempts,
            .replaced = found.replaced,
        },
        now);
}

namespace {

// One look at the key: what the probe found, what the core decided about it, and when.
struct Look {
    Verdict verdict;
    pg::Found found;
    TimestampTz now;
};

// A row that is absent or uncommitted has no fingerprint to compare, and none is needed.
bool is_same_request(const ClaimCall& call, const pg::Found& found) {
    const bool comparable =
        found.presence != core::Presence::absent && found.presence != core::Presence::inserting;
    return comparable && pg::same_request(call.request, found.record.fingerprint,
                                          pg::request_list(*call.scope, found.record.fingerprint));
}

// The probe follows the lock, and the clock is read after the probe, so that no decision rests on
// what was true before the lock was granted.
Look look(const ClaimCall& call, bool locked) {
    const pg::Records records =
        locked ? pg::Records::to_write(call.name.table) : pg::Records::to_read(call.name.table);
    if (locked) pg::check_place(call.name.scope_id, call.name.table);
    records.check_tenant(call.name.tenant);
    const pg::Found found = pg::probe(records, call.name);
    records.close();
    const TimestampTz now = GetCurrentTimestamp();
    return {judge(found, is_same_request(call, found), *call.scope, now), found, now};
}

// As look(), but frees what the previous repeated look has read: a claim may look many times.
Look look_again(const ClaimCall& call, bool locked, MemoryContext& memory) {
    if (memory == nullptr)
        memory = AllocSetContextCreate(CurrentMemoryContext, "idem look", ALLOCSET_SMALL_SIZES);
    MemoryContextReset(memory);
    const MemoryContext before = MemoryContextSwitchTo(memory);
    const Look seen = look(call, locked);
    MemoryContextSwitchTo(before);
    return seen;
}

bool is_free(Verdict verdict) {
    return verdict == Verdict::claim || verdict == Verdict::take_over;
}

// Whether another transaction must end before the claim can go on. An expired row that is being
// deleted does not bind the key, but a call that writes at once would have to wait for the
// deletion while it holds the key lock.
bool is_in_flight(const ClaimCall& call, const Look& seen) {
    if (seen.verdict == Verdict::in_flight) return true;
    return is_free(seen.verdict) && call.writes_at_once &&
           seen.found.presence == core::Presence::deleting;
}

// What a look leads to.
enum class Next { grant, answer, wait_for_lock, wait_for_writer, wait_for_lease };

Next next_after(const ClaimCall& call, const Look& seen, bool locked) {
    const bool in_flight = is_in_flight(call, seen);
    if (seen.verdict == Verdict::leased) return Next::wait_for_lease;
    if (!in_flight && !is_free(seen.verdict)) return Next::answer;
    if (!locked) return Next::wait_for_lock;
    return in_flight ? Next::wait_for_writer : Next::grant;
}

// ---- 2. Granting --------------------------------------------------------------------------------

// A scope may have got its rules after the key got its record, so they hold for new keys only.
void check_new_claim(const ClaimCall& call) {
    require_tenant(*call.scope, call.name.tenant);
    if (call.scope->request_required && call.request == nullptr)
        ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
                        errmsg("argument \"request\" must not be null"),
                        errdetail("Scope \"%s\" requires a request.", call.scope->name),
                        errhint("Pass the client's request as \"request\".")));
    if (call.ttl < call.scope->min_ttl.value_or(0))
        report::invalid_argument(
            "ttl",
            psprintf("Scope \"%s\" remembers every key for at least %s.", call.scope->name,
                     DatumGetCString(DirectFunctionCall1(
                         interval_out, PointerGetDatum(pg::interval_of(*call.scope->min_ttl))))),
            "Pass a longer \"ttl\", or leave it out to get the scope's own.");
}

// A takeover keeps the creation time and the fingerprint of the operation that it takes over. No
// rule for new keys refuses it, but it must not leave a record that lives for less than min_ttl.
pg::Claim new_claim(const ClaimCall& call, const Look& seen) {
    const bool taken_over = seen.verdict == Verdict::take_over;
    const pg::Record& old = seen.found.record;
    const std::int32_t attempt = taken_over ? old.attempt + 1 : core::first_attempt;
    pg::Claim claim(call.name, call.scope->name,
                    {call.lease ? core::TokenKind::leased : core::TokenKind::atomic,
                     call.name.digest, static_cast<std::uint32_t>(attempt), pg::random_bits(),
                     call.lease ? call.name.table : pg::common_records});
    claim.predecessor = seen.found.presence == core::Presence::absent ? pg::Predecessor::none
                                                                      : pg::Predecessor::outlived;
    claim.fingerprint = taken_over ? old.fingerprint
                                   : pg::new_fingerprint(call.request, call.scope->request_exclude);
    claim.created = taken_over ? old.created : seen.now;
    claim.ttl = std::max(call.ttl, call.scope->min_ttl.value_or(0));
    return claim;
}

// What another worker will need to finish the operation, or a conflict to be explained. A takeover
// keeps the request that is stored: later ones may differ in members that the scope excludes from
// the comparison.
varlena* request_to_store(const ClaimCall& call, const pg::Record& old) {
    const bool stores = call.scope->store_request != pg::StoreRequest::never;
    if (old.request != nullptr || !stores) return old.request;
    check_stored_size("request", *call.scope, {call.request});
    return reinterpret_cast<varlena*>(call.request);
}

// An atomic claim has no row yet, so its request is kept in memory, and not as the row of another
// attempt stores it.
Jsonb* request_to_remember(const ClaimCall& call, const pg::Record& old) {
    if (call.lease || call.scope->store_request != pg::StoreRequest::always) return nullptr;
    varlena* request = request_to_store(call, old);
    return request == nullptr ? nullptr : DatumGetJsonbP(PointerGetDatum(request));
}

// The row of the new attempt. old is that of the attempt taken over, or empty.
pg::Record leased_record(const ClaimCall& call, const pg::Claim& claim, const pg::Record& old) {
    pg::Record record = old;
    record.created = claim.created;
    record.lease_end = GetCurrentTimestamp() + *call.lease;
    record.expires = *record.lease_end + claim.ttl;
    record.nonce = static_cast<std::int64_t>(claim.token.random);
    record.attempt = static_cast<std::int32_t>(claim.token.attempt);
    record.state = core::State::in_progress;
    record.fingerprint = claim.fingerprint;
    record.request = request_to_store(call, old);
    return record;
}

// A leased operation may have effects outside the database, so its row must be durable before the
// caller goes on.
pg::WriteResult write_lease(const ClaimCall& call, const pg::Record& record, const Look& seen,
                            const pg::WaitBound& bound) {
    const pg::Records records = pg::Records::to_write(call.name.table);
    const pg::WriteResult writing = pg::write_over(records, call.name, record, seen.found, bound);
    records.close();
    if (writing.outcome == pg::WriteOutcome::written) pg::commit_durably();
    return writing;
}

// The holder has outlasted the wait.
ClaimResult give_up(const report::Holder& holder) {
    return {.outcome = Outcome::in_progress, .holder = holder, .retry_after = retry_after(holder)};
}

}  // namespace

void log_takeover(const pg::Scope& scope, const pg::KeyName& name, const pg::Record& old) {
    if (old.nonce)
        report::log_transition("lease has lapsed", scope.name, name.tenant, name.key, old.attempt);
    report::log_transition("operation was taken over", scope.name, name.tenant, name.key,
                           old.attempt + 1);
}

namespace {

// Makes the key this transaction's: in its memory, and for a leased claim also in a row.
ClaimResult make_claim(const ClaimCall& call, const Look& seen, const pg::WaitBound& bound) {
    const bool taken_over = seen.verdict == Verdict::take_over;
    const pg::Record old = taken_over ? seen.found.record : pg::Record{};
    pg::Claim claim = new_claim(call, seen);
    claim.request = request_to_remember(call, old);
    TimestampTz expires = 0;
    if (call.lease) {
        const pg::Record record = leased_record(call, claim, old);
        const pg::WriteResult writing = write_lease(call, record, seen, bound);
        if (writing.outcome == pg::WriteOutcome::blocked)
            return give_up(pg::holder_of(writing.in_the_way));
        expires = record.expires;
    }
    pg::count(call.scope->id, taken_over ? Counter::takeovers : Counter::claims);
    if (taken_over) log_takeover(*call.scope, call.name, old);
    if (!taken_over && claim.predecessor == pg::Predecessor::outlived)
        pg::count(call.scope->id, Counter::expired_reused);
    return {.outcome = Outcome::claimed,
            .claim = &pg::remember_claim(claim),
            .record = old,
            .expires = expires};
}

// The key is free, and this transaction has its lock: what a claim must still pass. A takeover adds
// no record, so only the limit on the transaction's open claims applies to it.
ClaimResult grant(const ClaimCall& call, const Look& seen, const pg::WaitBound& bound) {
    Assert(is_free(seen.verdict));
    const bool is_new = seen.verdict == Verdict::claim;
    if (is_new) check_new_claim(call);
    if (is_new && is_stale_key(*call.scope, call.name.key, seen.now, call.ttl))
        return {.outcome = Outcome::stale_key};
    if (is_new) check_strength(*call.scope, call.name.key);
    check_open_claims(call.scope->id);
    const std::int64_t wait =
        is_new ? charge_claim(*call.scope, call.name.tenant, seen.now) : std::int64_t{0};
    if (wait > 0) return {.outcome = Outcome::limited, .retry_after = wait};
    return make_claim(call, seen, bound);
}

// ---- 3. Answering -------------------------------------------------------------------------------

ClaimResult stored_answer(const ClaimCall& call, const Look& seen, Outcome outcome) {
    ClaimResult result{.outcome = outcome, .record = seen.found.record};
    pg::hide_outlived_answer(result.record, call.scope->answer_ttl, seen.now);
    return result;
}

// The record decides the outcome; the lock is not needed.
ClaimResult answer(const ClaimCall& call, const Look& seen) {
    switch (seen.verdict) {
        case Verdict::replay:
            return stored_answer(call, seen, Outcome::completed);
        case Verdict::failed:
            return stored_answer(call, seen, Outcome::failed);
        case Verdict::exhausted:
            return {.outcome = Outcome::exhausted, .record = seen.found.record};
        case Verdict::conflict:
            return {.outcome = Outcome::conflict,
                    .conflict =
                        explain_conflict(*call.scope, call.request, seen.found.record, seen.now)};
        default:
            Assert(seen.verdict == Verdict::serialization_failure);
            report::serialization_failure(
                "The key's record was committed after this transaction's snapshot was taken.");
    }
}

}  // namespace

void refuse(const ClaimCall& call, const ClaimResult& result) {
    const std::string_view key = call.name.key;
    switch (result.outcome) {
        case Outcome::failed:
            pg::raise_failure(key, result.record.error, pg::completed_at(result.record),
                              pg::is_of_any(result.record.fingerprint));
        case Outcome::exhausted:
            ereport(ERROR,
                    (report::own_error("key_failed"),
                     errmsg("operation \"%s\" has failed permanently", report::c_string(key)),
                     errdetail("Attempt %d was the last that the scope's \"max_attempts\" allows, "
                               "and it has ended without an answer.",
                               result.record.attempt),
                     errhint("Find out why no attempt has finished: see column \"last_error\" of "
                             "idem.in_flight. Then allow one more attempt with idem.revoke(); it "
                             "continues from the recovery point.")));
        case Outcome::in_progress:
            report::in_progress(key, result.holder, result.retry_after, call.wait_set_by);
        case Outcome::open_here:
            report::claimed_by_this_transaction(key);
        case Outcome::conflict:
            refuse_conflict(key, result.conflict);
        case Outcome::stale_key:
            refuse_stale_key(key);
        case Outcome::limited:
            report::too_many_claims_per_minute(call.scope->name, *call.scope->claims_per_minute,
                                               result.retry_after);
        case Outcome::claimed:
        case Outcome::completed:
            break;
    }
    elog(ERROR, "outcome %d is not a refusal", static_cast<int>(result.outcome));
}

namespace {

// ---- 4. Statistics ------------------------------------------------------------------------------

void count_wait(const ClaimCall& call, TimestampTz since) {
    const TimestampTz waited = GetCurrentTimestamp() - since;
    pg::count(call.scope->id, Counter::waits);
    pg::count(call.scope->id, Counter::wait_time, std::max<TimestampTz>(waited, 0));
    pg::observe(call.scope->id, pg::Duration::wait, waited);
}

// For the server's administrators: the caller learns of the conflict by the outcome.
void note_conflict(const ClaimCall& call, const ClaimResult& result) {
    pg::count(call.scope->id, Counter::conflicts);
    (void)pg::at_seam(pg::seam::Event::conflict);
    if (pg::guc::log_conflicts != 0) log_conflict(*call.scope, call.name, result.conflict);
}

void count_outcome(const ClaimCall& call, const ClaimResult& result) {
    switch (result.outcome) {
        case Outcome::claimed:
            return (void)pg::at_seam(pg::seam::Event::claimed);  // counted by make_claim()
        case Outcome::exhausted:
            report::log_transition("attempts are exhausted", call.scope->name, call.name.tenant,
                                   call.name.key, result.record.attempt);
            [[fallthrough]];
        case Outcome::completed:
        case Outcome::failed:
            return pg::count(call.scope->id, Counter::replays);
        case Outcome::in_progress:
        case Outcome::open_here:
            return pg::count(call.scope->id, Counter::in_flight);
        case Outcome::conflict:
            return note_conflict(call, result);
        case Outcome::stale_key:
            return pg::count(call.scope->id, Counter::stale);
        case Outcome::limited:
            return pg::count(call.scope->id, Counter::limited);
    }
}

// ---- 5. The protocol ----------------------------------------------------------------------------

// Looks until the key can be granted or answered, or until a wait reaches the bound. Sets
// waiting_since when it begins to wait.
ClaimResult look_until_decided(const ClaimCall& call, TimestampTz& waiting_since) {
    const pg::WaitBound bound(call.wait);
    pg::KeyLock lock(call.name.digest);
    bool locked = lock.try_acquire();
    MemoryContext memory = nullptr;
    for (Look seen = look(call, locked);; seen = look_again(call, locked, memory)) {
        const Next next = next_after(call, seen, locked);
        if (next == Next::grant) {
            const ClaimResult result = pg::at_seam(pg::seam::Event::granting)
                                           ? give_up(report::Holder{})
                                           : grant(call, seen, bound);
            if (result.outcome != Outcome::claimed) lock.release();
            return result;
        }
        if (next == Next::answer) {
            if (locked) lock.release();
            return answer(call, seen);
        }
        if (call.wait > 0 && waiting_since == 0) waiting_since = GetCurrentTimestamp();
        if (next == Next::wait_for_lock) {
            locked = lock.acquire(bound);
            if (!locked) return give_up(lock.holder().value_or(report::Holder{}));
        } else if (next == Next::wait_for_writer) {
            // The writer bypassed the lock. Its transaction may claim the key as well, so the lock
            // is released before the wait.
            lock.release();
            if (!bound.wait_for(seen.found.writer))
                return give_up(pg::holder_of(seen.found.writer.xid));
            locked = lock.try_acquire();
        } else {
            // The lease's holder needs the lock to complete.
            const pg::Record& record = seen.found.record;
            if (locked) lock.release();
            locked = false;
            if (!bound.nap(pg::key_event(call.name.digest), *record.lease_end))
                return give_up(lease_of(record));
        }
    }
}

}  // namespace

ClaimResult claim_key(const ClaimCall& call) {
    TimestampTz waiting_since = 0;
    const ClaimResult result = is_open_here(call.name.digest)
                                   ? ClaimResult{.outcome = Outcome::open_here}
                                   : look_until_decided(call, waiting_since);
    Assert((result.outcome == Outcome::claimed) == (result.claim != nullptr));
    if (waiting_since != 0) {
        pg::withdraw_wait();
        count_wait(call, waiting_since);
    }
    count_outcome(call, result);
    return result;
}

ClaimResult take_over(const ClaimCall& call, const pg::Found& found, TimestampTz now,
                      const pg::WaitBound& bound) {
    Assert(found.record.state == core::State::in_progress && call.lease);
    return grant(call, {Verdict::take_over, found, now}, bound);
}

ClaimCall make_claim_call(const KeyCall& key, Jsonb* request, std::optional<std::int64_t> ttl,
                          std::optional<std::int64_t> wait) {
    return {.scope = key.scope,
            .name = key.name,
            .request = request,
            .ttl = ttl.value_or(key.scope->ttl),
            .wait = wait.value_or(key.scope->wait),
            .lease = std::nullopt};
}

namespace {

// ---- 6. The SQL functions -----------------------------------------------------------------------

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
ClaimCall read_call(FunctionCallInfo fcinfo, Refusals refusals, const char* function) {
    const auto ttl = pg::positive_duration_arg(fcinfo, arg_ttl, "ttl");
    const auto lease = pg::positive_duration_arg(fcinfo, arg_lease, "lease");
    const auto wait = pg::nonnegative_duration_arg(fcinfo, arg_wait, "wait");
    const auto bound = refusals == Refusals::raised ? wait : std::optional(wait.value_or(0));
    ClaimCall call = make_claim_call(read_key(fcinfo, arg_tenant, function),
                                     pg::jsonb_arg(fcinfo, arg_request), ttl, bound);
    call.lease = lease;
    call.writes_at_once = lease.has_value();
    return call;
}

// As the column "outcome" shows them.
constexpr const char* outcome_names[] = {"claimed",  "completed",   "failed",
                                         "failed",   "in_progress", "in_progress",
                                         "conflict", "stale_key",   "limited"};

void set_claim(Result& row, const ClaimResult& result) {
    const pg::Claim& claim = *result.claim;
    row.set_text(column_token, pg::token_text(claim.token).view());
    row.set_int(column_attempt, static_cast<std::int32_t>(claim.token.attempt));
    row.set_pointer(column_recovery_point, result.record.recovery_point);
    row.set_pointer(column_recovery_state, result.record.recovery_state);
    row.set_time(column_created_at, claim.created);
}

void set_answer(Result& row, const pg::Record& record) {
    row.set_int(column_attempt, record.attempt);
    row.set_int(column_status, record.status);
    row.set_pointer(column_headers, record.headers);
    row.set_pointer(column_response, record.response);
    row.set_pointer(column_body, record.body);
    row.set_pointer(column_error, record.error);
    row.set_time(column_created_at, record.created);
    row.set_time(column_expires_at, record.expires);
    row.set_bool(column_redacted, record.redacted);
    row.set_time(column_completed_at, pg::completed_at(record));
}

Result row_of(const ClaimResult& result) {
    Result row;
    row.set(column_claimed, BoolGetDatum(result.outcome == Outcome::claimed));
    row.set_text(column_outcome, outcome_names[static_cast<std::size_t>(result.outcome)]);
    switch (result.outcome) {
        case Outcome::claimed:
            set_claim(row, result);
            break;
        case Outcome::completed:
        case Outcome::failed:
        case Outcome::exhausted:
            set_answer(row, result.record);
            break;
        case Outcome::in_progress:
            row.set_time(column_created_at, result.holder.since);
            [[fallthrough]];
        case Outcome::limited:
            row.set_pointer(column_retry_after, pg::interval_of(result.retry_after));
            break;
        case Outcome::conflict:
            row.set_pointer(column_differs, differing_members(result.conflict));
            break;
        case Outcome::open_here:
        case Outcome::stale_key:
            break;
    }
    return row;
}

// Whether an expression of the client's own statement makes the call: its memory is then that of
// the statement that the portal runs. A call within a function belongs to another statement.
bool is_called_by_statement(FunctionCallInfo fcinfo) {
    const QueryDesc* query = ActivePortal != nullptr ? ActivePortal->queryDesc : nullptr;
    return query != nullptr && query->estate != nullptr &&
           query->estate->es_query_cxt == fcinfo->flinfo->fn_mcxt;
}

Datum claim(FunctionCallInfo fcinfo, Refusals refusals, const char* function,
            const char* call_name) {
    require_writable(call_name, read_by_lookup);
    const ClaimCall call = read_call(fcinfo, refusals, function);
    const ClaimResult result = claim_key(call);
    const bool claimed = result.outcome == Outcome::claimed;
    if (claimed) result.claim->by_statement = is_called_by_statement(fcinfo);
    const bool refused = !claimed && result.outcome != Outcome::completed;
    if (refused && refusals == Refusals::raised) refuse(call, result);
    Result row = row_of(result);
    return row.as_result_of(fcinfo);
}

}  // namespace
}  // namespace idem::api

IDEM_FUNCTION(idem_claim) {
    return idem::api::claim(fcinfo, idem::api::Refusals::raised, "claim", "idem.claim()");
}

IDEM_FUNCTION(idem_try_claim) {
    return idem::api::claim(fcinfo, idem::api::Refusals::returned, "try_claim", "idem.try_claim()");
}
