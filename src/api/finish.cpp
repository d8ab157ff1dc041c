// idem.complete(), idem.fail() and idem.release(), which end a claim by its token, and what
// execute and once share with them.
#include "api/finish.hpp"

#include "api/arguments.hpp"
#include "api/lease.hpp"
#include "api/locked_key.hpp"
#include "pg/server/failure.hpp"
#include "pg/shared/stats.hpp"
#include "pg/store/token.hpp"

namespace idem::api {
namespace {

using core::TokenKind;
using pg::Counter;
using pg::Duration;

// ---- What is stored -----------------------------------------------------------------------------

// A finished record needs no lease and no recovery point. It keeps the nonce of its token, so that
// a second complete() is told that the claim is finished. In the column lease_end it notes when it
// finished, unless it was claimed in this transaction.
//
// The scope's rules are those of now, not those at the time of the claim; scope is NULL if it has
// been dropped. A failure is kept whole, except for excluded headers, because it is raised again.
void finish_record(pg::NewRecord& record, const Answer& answer, const varlena* request,
                   const pg::Scope* scope, TimestampTz now, std::int64_t ttl) {
    Assert(answer.state != core::State::in_progress);
    const bool keeps =
        answer.state == core::State::failed || (scope != nullptr && scope->store_response);
    Jsonb* headers = keeps ? answer.headers : nullptr;
    Jsonb* response = keeps ? answer.response : nullptr;
    bytea* body = keeps ? answer.body : nullptr;
    if (scope == nullptr || scope->store_request != pg::StoreRequest::always) request = nullptr;
    if (scope != nullptr) {
        headers = pg::redact_headers(headers, scope->header_exclude);
        response = pg::redact(response, scope->response_exclude);
        check_size("answer", *scope, {headers, response, body, answer.error});
    }
    const bool claimed_before = record.nonce() || record.attempt() > core::first_attempt;
    record.set_expires(now + ttl);
    record.set_lease_end(claimed_before ? std::optional(now) : std::nullopt);
    record.set_extra_attempts(0);
    record.set_state(answer.state);
    record.set_redacted(headers != answer.headers || response != answer.response ||
                        body != answer.body);
    record.set_recovery_point(nullptr);
    record.set_recovery_state(nullptr);
    record.set_status(answer.status);
    record.set_headers(headers);
    record.set_response(response);
    record.set_body(body);
    record.set_error(answer.error);
    record.set_request(request);
}

pg::NewRecord begun_record(const pg::Key& key, TimestampTz created, std::int32_t attempt,
                           bytea* fingerprint) {
    pg::NewRecord begun(key);
    begun.set_created(created);
    begun.set_attempt(attempt);
    begun.set_fingerprint(fingerprint);
    return begun;
}

// ---- How a claim ends ---------------------------------------------------------------------------

void log_transition(const char* what, const pg::Claim& claim) {
    report::log_transition(what, claim.scope_name, claim.tenant, claim.key,
                           static_cast<std::int32_t>(claim.token.attempt));
}

void note_finished(pg::Claim& claim, core::State state) {
    const bool failed = state == core::State::failed;
    pg::close_claim(claim, failed ? pg::Phase::failed : pg::Phase::completed);
    pg::count(claim.scope_id, failed ? Counter::failures : Counter::completions);
    if (failed) log_transition("failure was stored", claim);
}

void note_released(pg::Claim& claim) {
    pg::close_claim(claim, pg::Phase::released);
    pg::count(claim.scope_id, Counter::releases);
}

void finish_leased(LeasedClaim& leased, const Answer& answer) {
    const pg::Record& old = leased.found.record;
    const TimestampTz now = GetCurrentTimestamp();
    pg::NewRecord record(old);
    finish_record(record, answer, old.stored_request(), leased.scope, now, ttl_of(old));
    replace_record(leased.key, leased.found, record, leased.bound);
    note_finished(*leased.note, answer.state);
    pg::observe(leased.key.scope_id, Duration::leased, now - old.created());
    pg::wake_at_commit(pg::key_event(leased.key.digest));
}

// The row stays, with its attempt and without a nonce: this fences the token off. In place of the
// end of a lease, it has the time from which the key can be claimed. After the last attempt there
// is nothing to wait for.
void release_leased(LeasedClaim& leased, std::optional<std::int64_t> retry_after, Jsonb* error) {
    const pg::Record& old = leased.found.record;
    const bool last =
        core::is_last_attempt(old.attempt(), leased.scope->max_attempts, old.extra_attempts());
    const std::int64_t pause = last ? 0 : retry_after.value_or(0);
    pg::NewRecord record(old);
    record.set_lease_end(GetCurrentTimestamp() + pause);
    record.set_expires(*record.lease_end() + ttl_of(old));
    record.set_nonce(std::nullopt);
    check_size("error", *leased.scope, {error});
    if (error != nullptr) record.set_error(error);
    replace_record(leased.key, leased.found, record, leased.bound);
    note_released(*leased.note);
    if (last) log_transition("attempts are exhausted", *leased.note);
    pg::wake_at_commit(pg::key_event(leased.key.digest));
    pg::wake_at_commit(pg::scope_event(leased.key.scope_id));
}

// complete() and fail() take the same arguments, except that the second is a response or an error.
enum Argument { arg_token, arg_response_or_error, arg_status, arg_headers, arg_body };

Answer read_answer(FunctionCallInfo fcinfo, core::State state) {
    Jsonb* headers = pg::jsonb_arg(fcinfo, arg_headers);
    if (headers != nullptr) pg::check_headers("headers", headers);
    return {.state = state,
            .status = pg::value_arg<std::int32_t>(fcinfo, arg_status),
            .headers = headers,
            .body = PG_ARGISNULL(arg_body) ? nullptr : PG_GETARG_BYTEA_PP(arg_body)};
}

void finish(FunctionCallInfo fcinfo, const Answer& answer) {
    const core::Token token = pg::read_token(pg::text_arg(fcinfo, arg_token));
    if (token.kind == TokenKind::atomic) {
        (void)finish_atomic(pg::open_claim(token), answer);
        return;
    }
    LeasedClaim leased = lock_leased_claim(token);
    finish_leased(leased, answer);
}

}  // namespace

pg::NewRecord completed_record(const pg::Key& key, TimestampTz created, std::int64_t ttl,
                               std::int32_t attempt, bytea* fingerprint) {
    pg::NewRecord record = begun_record(key, created, attempt, fingerprint);
    finish_record(record, {.state = core::State::completed}, nullptr, nullptr,
                  GetCurrentTimestamp(), ttl);
    return record;
}

pg::NewRecord finish_atomic(pg::Claim& claim, const Answer& answer) {
    Assert(claim.phase == pg::Phase::open && claim.token.kind == TokenKind::atomic);
    const pg::Scope* scope = pg::find_scope_by_id(claim.scope_id);
    pg::WaitBound bound(scope == nullptr ? 0 : scope->wait);
    const TimestampTz now = GetCurrentTimestamp();
    const auto attempt = static_cast<std::int32_t>(claim.token.attempt);
    pg::NewRecord record = begun_record(claim, claim.created, attempt, claim.fingerprint);
    finish_record(record, answer, reinterpret_cast<varlena*>(claim.request), scope, now, claim.ttl);
    check_written(claim.key, pg::write_record(claim, record, claim.replaces, bound), bound);
    note_finished(claim, answer.state);
    if (answer.timed) pg::observe(claim.scope_id, Duration::atomic, now - claim.created);
    if (attempt > core::first_attempt) pg::wake_at_commit(pg::key_event(claim.digest));
    return record;
}

IDEM_FUNCTION(idem_complete) {
    require_writable("complete", read_by_lookup);
    Answer answer = read_answer(fcinfo, core::State::completed);
    answer.response = pg::jsonb_arg(fcinfo, arg_response_or_error);
    finish(fcinfo, answer);
    if (answer.response == nullptr) PG_RETURN_NULL();
    PG_RETURN_JSONB_P(answer.response);
}

IDEM_FUNCTION(idem_fail) {
    require_writable("fail", read_by_lookup);
    Answer answer = read_answer(fcinfo, core::State::failed);
    answer.error = pg::jsonb_arg(fcinfo, arg_response_or_error);
    if (answer.error == nullptr) report::missing_argument("error");
    pg::check_failure(answer.error, pg::FailureUse::answer);
    finish(fcinfo, answer);
    PG_RETURN_VOID();
}

// The lock of a released atomic claim stays until the transaction ends, because the transaction may
// still commit effects of the operation.
IDEM_FUNCTION(idem_release) {
    require_writable("release", read_by_lookup);
    const auto retry_after = pg::duration_arg(fcinfo, 1, "retry_after", pg::Sign::not_negative);
    Jsonb* error = pg::jsonb_arg(fcinfo, 2);
    if (error != nullptr) pg::check_failure(error, pg::FailureUse::note);
    const core::Token token = pg::read_token(pg::text_arg(fcinfo, arg_token));
    if (token.kind == core::TokenKind::leased) {
        LeasedClaim leased = lock_leased_claim(token);
        release_leased(leased, retry_after, error);
        PG_RETURN_VOID();
    }
    pg::Claim& claim = pg::open_claim(token);
    if (retry_after || error != nullptr)
        report::invalid_argument(
            retry_after ? "retry_after" : "error",
            "The token is of an atomic claim, of which nothing is stored.",
            "Leave the argument out, or make a leased claim: pass \"lease\" to idem.claim().");
    note_released(claim);
    PG_RETURN_VOID();
}

}  // namespace idem::api
