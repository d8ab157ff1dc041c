// idem.complete(), idem.fail() and idem.release(), which end a claim by its token, and what
// execute and once share with them.
#include "api/finish.hpp"

#include "api/arguments.hpp"
#include "api/lease.hpp"
#include "api/locked_key.hpp"
#include "pg/boundary.hpp"
#include "pg/document.hpp"
#include "pg/failure.hpp"
#include "pg/guc.hpp"
#include "pg/report.hpp"
#include "pg/secret.hpp"
#include "pg/stats.hpp"

namespace idem::api {
namespace {

using core::TokenKind;
using pg::Counter;
using pg::Duration;

// ---- What is stored -----------------------------------------------------------------------------

struct StoredAnswer {
    Answer answer;
    bool redacted;               // a part of what the caller passed is left out
    varlena* request = nullptr;  // what the record keeps of it
};

// NULL if the scope stores no responses or has been dropped (scope is NULL).
Jsonb* stored_response(Jsonb* response, const pg::Scope* scope) {
    if (scope == nullptr || !scope->store_response) return nullptr;
    return pg::redact(response, scope->response_exclude);
}

// A failure is kept whole, except for excluded headers, because it is raised again.
StoredAnswer redact(const Answer& answer, const pg::Scope* scope) {
    Answer kept = answer;
    if (scope != nullptr) kept.headers = pg::redact_headers(answer.headers, scope->header_exclude);
    if (answer.state == core::State::completed) {
        kept.response = stored_response(answer.response, scope);
        if (scope == nullptr || !scope->store_response) {
            kept.headers = nullptr;
            kept.body = nullptr;
        }
    }
    return {kept, kept.headers != answer.headers || kept.response != answer.response ||
                      kept.body != answer.body};
}

// The scope's rules are those of now, not those at the time of the claim.
StoredAnswer stored_part(const Answer& answer, varlena* request, const pg::Scope* scope) {
    StoredAnswer stored = redact(answer, scope);
    if (scope == nullptr) return stored;
    if (scope->store_request == pg::StoreRequest::always) stored.request = request;
    const Answer& kept = stored.answer;
    check_stored_size("answer", *scope,
                      {kept.headers, kept.response, kept.body, kept.error, stored.request});
    return stored;
}

// A finished record needs no lease and no recovery point. It keeps the nonce of its token, so that
// a second complete() is told that the claim is finished. In the column lease_end it notes when it
// finished, unless it was claimed in this transaction. begun has the operation's creation time,
// attempt, fingerprint and nonce.
pg::Record finished_record(const pg::Record& begun, const StoredAnswer& stored, TimestampTz now,
                           std::int64_t ttl) {
    const Answer& answer = stored.answer;
    Assert(answer.state != core::State::in_progress);
    const bool claimed_before = begun.nonce || begun.attempt > core::first_attempt;
    pg::Record record{};
    record.created = begun.created;
    record.expires = now + ttl;
    if (claimed_before) record.lease_end = now;
    record.nonce = begun.nonce;
    record.attempt = begun.attempt;
    record.state = answer.state;
    record.redacted = stored.redacted;
    record.fingerprint = begun.fingerprint;
    record.status = answer.status;
    record.headers = answer.headers;
    record.response = answer.response;
    record.body = answer.body;
    record.error = answer.error;
    record.request = stored.request;
    return record;
}

// Of an atomic operation, which has no row until it is finished.
pg::Record begun_record(TimestampTz created, std::int32_t attempt, bytea* fingerprint) {
    pg::Record begun{};
    begun.created = created;
    begun.attempt = attempt;
    begun.fingerprint = fingerprint;
    return begun;
}

}  // namespace

pg::Record completed_record(TimestampTz created, std::int64_t ttl, std::int32_t attempt,
                            bytea* fingerprint) {
    return finished_record(begun_record(created, attempt, fingerprint),
                           {{.state = core::State::completed}, false}, GetCurrentTimestamp(), ttl);
}

// ---- How a claim ends ---------------------------------------------------------------------------

namespace {

void log_transition(const char* what, const pg::Claim& claim) {
    pg::report::log_transition(what, claim.scope_name, claim.tenant, claim.key,
                               static_cast<std::int32_t>(claim.token.attempt));
}

void note_finished(pg::Claim& claim, core::State state) {
    pg::close_claim(claim, pg::Phase::finished);
    claim.failed = state == core::State::failed;
    pg::count(claim.scope_id, claim.failed ? Counter::failures : Counter::completions);
    if (claim.failed) log_transition("failure was stored", claim);
}

void note_released(pg::Claim& claim) {
    pg::close_claim(claim, pg::Phase::released);
    pg::count(claim.scope_id, Counter::releases);
}

void finish_leased(const LeasedClaim& leased, const Answer& answer) {
    const pg::Record& old = leased.found.record;
    const StoredAnswer stored = stored_part(answer, old.request, leased.scope);
    const TimestampTz now = GetCurrentTimestamp();
    update_record(leased, finished_record(old, stored, now, ttl_of(old)));
    note_finished(*leased.note, answer.state);
    pg::observe(leased.name.scope_id, Duration::leased, now - old.created);
    pg::wake_at_commit(pg::key_event(leased.name.digest));
}

// The row stays, with its attempt and without a nonce: this fences the token off. In place of the
// end of a lease, it has the time from which the key can be claimed. After the last attempt there
// is nothing to wait for.
void release_leased(const LeasedClaim& leased, std::optional<std::int64_t> retry_after,
                    Jsonb* error) {
    const pg::Record& old = leased.found.record;
    const bool last =
        core::exhausted(old.attempt, leased.scope->max_attempts, old.extra_attempts, 0, 0);
    const std::int64_t pause = last ? 0 : retry_after.value_or(0);
    pg::Record record = old;
    record.lease_end = GetCurrentTimestamp() + pause;
    record.expires = expires_after(old, *record.lease_end);
    record.nonce = std::nullopt;
    if (error != nullptr) record.error = error;
    if (error != nullptr) check_unfinished_size("error", *leased.scope, record);
    update_record(leased, record);
    note_released(*leased.note);
    if (last) log_transition("attempts are exhausted", *leased.note);
    pg::wake_at_commit(pg::key_event(leased.name.digest));
    pg::wake_at_commit(pg::scope_event(leased.name.scope_id));
}

// An atomic claim has no row that could hold the argument.
void refuse_for_atomic(const char* argument, bool given) {
    if (given)
        pg::report::invalid_argument(
            argument, "The token is of an atomic claim, of which nothing is stored.",
            "Leave the argument out, or make a leased claim: pass \"lease\" to idem.claim().");
}

}  // namespace

pg::Record finish_atomic(pg::Claim& claim, const Answer& answer) {
    Assert(claim.phase == pg::Phase::open && claim.token.kind == TokenKind::atomic);
    const pg::Scope* scope = pg::find_scope_by_id(claim.scope_id);
    const pg::WaitBound bound(scope == nullptr ? 0 : scope->wait);
    const StoredAnswer stored =
        stored_part(answer, reinterpret_cast<varlena*>(claim.request), scope);
    const pg::Records records = pg::Records::to_write(claim.table);
    const TimestampTz now = GetCurrentTimestamp();
    const auto attempt = static_cast<std::int32_t>(claim.token.attempt);
    const pg::Record record = finished_record(
        begun_record(claim.created, attempt, claim.fingerprint), stored, now, claim.ttl);
    const pg::WriteResult writing =
        pg::write_record(records, claim, record, claim.predecessor, bound);
    records.close();
    check_written(claim.key, writing);
    note_finished(claim, answer.state);
    if (answer.timed) pg::observe(claim.scope_id, Duration::atomic, now - claim.created);
    if (attempt > core::first_attempt) pg::wake_at_commit(pg::key_event(claim.digest));
    return record;
}

// ---- The SQL functions --------------------------------------------------------------------------

namespace {

// complete() and fail() take the same arguments, except that the second is a response or an error.
enum Argument { arg_token, arg_response_or_error, arg_status, arg_headers, arg_body };

Answer read_answer(FunctionCallInfo fcinfo, core::State state) {
    Jsonb* headers = pg::jsonb_arg(fcinfo, arg_headers);
    if (headers != nullptr) pg::check_headers("headers", headers);
    return {.state = state,
            .status = pg::int_arg(fcinfo, arg_status),
            .headers = headers,
            .body = pg::bytea_arg(fcinfo, arg_body)};
}

void finish(FunctionCallInfo fcinfo, const Answer& answer) {
    const core::Token token = pg::read_token(pg::text_arg(fcinfo, arg_token));
    if (token.kind == TokenKind::atomic)
        (void)finish_atomic(pg::open_claim(token), answer);
    else
        finish_leased(lock_leased_claim(token), answer);
}

}  // namespace
}  // namespace idem::api

IDEM_FUNCTION(idem_complete) {
    using namespace idem;
    api::require_writable("idem.complete()", api::read_by_lookup);
    api::Answer answer = api::read_answer(fcinfo, core::State::completed);
    answer.response = pg::jsonb_arg(fcinfo, api::arg_response_or_error);
    api::finish(fcinfo, answer);
    if (answer.response == nullptr) PG_RETURN_NULL();
    PG_RETURN_JSONB_P(answer.response);
}

IDEM_FUNCTION(idem_fail) {
    using namespace idem;
    api::require_writable("idem.fail()", api::read_by_lookup);
    api::Answer answer = api::read_answer(fcinfo, core::State::failed);
    answer.error = pg::jsonb_arg(fcinfo, api::arg_response_or_error);
    if (answer.error == nullptr) pg::report::missing_argument("error");
    pg::check_failure(answer.error, pg::FailureUse::answer);
    api::finish(fcinfo, answer);
    PG_RETURN_VOID();
}

// The lock of a released atomic claim stays until the transaction ends, because the transaction may
// still commit effects of the operation.
IDEM_FUNCTION(idem_release) {
    using namespace idem;
    api::require_writable("idem.release()", api::read_by_lookup);
    const auto retry_after = pg::nonnegative_duration_arg(fcinfo, 1, "retry_after");
    Jsonb* error = pg::jsonb_arg(fcinfo, 2);
    if (error != nullptr) pg::check_failure(error, pg::FailureUse::note);
    const core::Token token = pg::read_token(pg::text_arg(fcinfo, api::arg_token));
    if (token.kind == core::TokenKind::leased) {
        api::release_leased(api::lock_leased_claim(token), retry_after, error);
        PG_RETURN_VOID();
    }
    pg::Claim& claim = pg::open_claim(token);
    api::refuse_for_atomic("retry_after", retry_after.has_value());
    api::refuse_for_atomic("error", error != nullptr);
    api::note_released(claim);
    PG_RETURN_VOID();
}
