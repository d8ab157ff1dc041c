// idem.claim() and idem.try_claim(): own the operation, or get its stored answer.
#include "api/arguments.hpp"
#include "api/claiming.hpp"
#include "pg/boundary.hpp"

namespace idem::api {
namespace {

enum Argument { arg_scope, arg_key, arg_request, arg_tenant, arg_ttl, arg_lease, arg_wait };

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
    columns
};
using Result = pg::Row<columns>;

// Whether an outcome that is not an answer raises, or comes back as data.
enum class Style { raise, report };

// In the order that the reference promises: shape, scope, permission, the scope's rules.
ClaimCall read_call(FunctionCallInfo fcinfo, Style style, const char* function) {
    const std::string_view key = checked_key(pg::text_arg(fcinfo, arg_key));
    const std::string_view tenant = checked_tenant(pg::text_arg(fcinfo, arg_tenant));
    const auto ttl = pg::positive_duration_arg(fcinfo, arg_ttl, "ttl");
    const auto lease = pg::positive_duration_arg(fcinfo, arg_lease, "lease");
    const auto wait = pg::nonnegative_duration_arg(fcinfo, arg_wait, "wait");

    const pg::Scope& scope = pg::usable_scope(pg::text_arg(fcinfo, arg_scope), function);
    const auto bound = style == Style::raise ? wait : std::optional(wait.value_or(0));
    ClaimCall call = claim_call(scope, key, tenant, pg::jsonb_arg(fcinfo, arg_request), ttl, bound);
    call.lease = lease;
    call.writes_at_once = lease.has_value();
    return call;
}

Result outcome(std::string_view text) {
    Result result;
    result.set(column_claimed, BoolGetDatum(false));
    result.set_text(column_outcome, text);
    return result;
}

Result claimed(const Claiming& claiming) {
    const pg::Claim& claim = *claiming.claim;
    const core::TokenText token = pg::token_text(claim.token);
    Result result = outcome("claimed");
    result.set(column_claimed, BoolGetDatum(true));
    result.set_text(column_token, {token.data(), token.size()});
    result.set_int(column_attempt, static_cast<std::int32_t>(claim.token.attempt));
    result.set_pointer(column_recovery_point, claiming.record.recovery_point);
    result.set_pointer(column_recovery_state, claiming.record.recovery_state);
    result.set_time(column_created_at, claim.created);
    return result;
}

Result answer(std::string_view text, const pg::Record& record) {
    Result result = outcome(text);
    result.set_int(column_attempt, record.attempt);
    result.set_int(column_status, record.status);
    result.set_pointer(column_headers, record.headers);
    result.set_pointer(column_response, record.response);
    result.set_pointer(column_body, record.body);
    result.set_pointer(column_error, record.error);
    result.set_time(column_created_at, record.created);
    result.set_time(column_expires_at, record.expires);
    result.set_bool(column_redacted, record.redacted);
    return result;
}

Result come_back(std::string_view text, std::int64_t retry_after) {
    Result result = outcome(text);
    result.set_pointer(column_retry_after, pg::interval_of(retry_after));
    return result;
}

Result result_of(const Claiming& claiming) {
    switch (claiming.outcome) {
        case Outcome::claimed:
            return claimed(claiming);
        case Outcome::completed:
            return answer("completed", claiming.record);
        case Outcome::failed:
        case Outcome::exhausted:
            return answer("failed", claiming.record);
        case Outcome::in_progress:
            return come_back("in_progress", claiming.retry_after);
        case Outcome::open_here:
            return outcome("in_progress");
        case Outcome::conflict:
            return outcome("conflict");
        case Outcome::stale_key:
            return outcome("stale_key");
        case Outcome::too_many:
            return outcome("limited");
        case Outcome::limited:
            return come_back("limited", claiming.retry_after);
    }
    pg_unreachable();
}

// Whether an expression of the client's own statement makes the call: it then lives in the memory
// of the statement that the portal runs. Within a function the call is another statement's.
bool called_by_statement(FunctionCallInfo fcinfo) {
    const QueryDesc* query = ActivePortal != nullptr ? ActivePortal->queryDesc : nullptr;
    return query != nullptr && query->estate != nullptr &&
           query->estate->es_query_cxt == fcinfo->flinfo->fn_mcxt;
}

Datum claim(FunctionCallInfo fcinfo, Style style, const char* function, const char* call_name) {
    require_writable(call_name, read_by_lookup);
    const ClaimCall call = read_call(fcinfo, style, function);
    const Claiming claiming = claim_key(call);
    if (claiming.outcome == Outcome::claimed)
        claiming.claim->by_statement = called_by_statement(fcinfo);
    const bool answers =
        claiming.outcome == Outcome::claimed || claiming.outcome == Outcome::completed;
    if (!answers && style == Style::raise) refuse(call, claiming);
    Result result = result_of(claiming);
    return result.as_result_of(fcinfo);
}

}  // namespace
}  // namespace idem::api

IDEM_FUNCTION(idem_claim) {
    return idem::api::claim(fcinfo, idem::api::Style::raise, "claim", "idem.claim()");
}

IDEM_FUNCTION(idem_try_claim) {
    return idem::api::claim(fcinfo, idem::api::Style::report, "try_claim", "idem.try_claim()");
}
