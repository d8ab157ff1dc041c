// idem.complete(), idem.fail() and idem.release(): how a claim ends.
//
// complete and fail write the one row of the operation, so that effect and record commit together.
// The key lock is held since the claim, and kept: others see either the lock or the committed row.
#include "api/arguments.hpp"
#include "pg/open_claims.hpp"
#include "pg/report.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;

enum Argument { arg_token, arg_answer, arg_status, arg_headers, arg_body };

// The SQL signatures of complete and fail differ only in what the answer means.
void finish(FunctionCallInfo fcinfo, pg::Claim& claim, core::State state, Jsonb* response,
            Jsonb* error) {
    const pg::KeyName name{claim.scope_id, claim.tenant, claim.key, claim.token.digest};
    const pg::Record record{
        .created = claim.created,
        .expires = GetCurrentTimestamp() + claim.ttl,
        .attempt = static_cast<std::int32_t>(claim.token.attempt),
        .state = state,
        .fingerprint = claim.fingerprint,
        .status = pg::int_arg(fcinfo, arg_status),
        .headers = pg::jsonb_arg(fcinfo, arg_headers),
        .response = response,
        .body = pg::bytea_arg(fcinfo, arg_body),
        .error = error,
    };
    const pg::Records records = pg::Records::to_write();
    pg::write_record(records, name, record, claim.replaces_expired);
    records.close();
    pg::close_claim(claim, pg::Phase::finished);
}

}  // namespace
}  // namespace idem::api

IDEM_FUNCTION(idem_complete) {
    using namespace idem;
    api::require_writable("idem.complete()");
    pg::Claim& claim = pg::open_claim(pg::text_arg(fcinfo, api::arg_token));
    Jsonb* response = pg::jsonb_arg(fcinfo, api::arg_answer);
    api::finish(fcinfo, claim, core::State::completed, response, nullptr);
    if (response == nullptr) PG_RETURN_NULL();
    PG_RETURN_JSONB_P(response);
}

IDEM_FUNCTION(idem_fail) {
    using namespace idem;
    api::require_writable("idem.fail()");
    pg::Claim& claim = pg::open_claim(pg::text_arg(fcinfo, api::arg_token));
    Jsonb* error = pg::jsonb_arg(fcinfo, api::arg_answer);
    if (error == nullptr) pg::report::missing_argument("error");
    if (!JB_ROOT_IS_OBJECT(error))
        pg::report::invalid_argument(
            "error", "It must be an object with sqlstate, message, detail and hint.");
    api::finish(fcinfo, claim, core::State::failed, nullptr, error);
    PG_RETURN_VOID();
}

// The lock stays until the transaction ends: what the transaction did before may still commit.
IDEM_FUNCTION(idem_release) {
    using namespace idem;
    api::require_writable("idem.release()");
    pg::Claim& claim = pg::open_claim(pg::text_arg(fcinfo, api::arg_token));
    pg::close_claim(claim, pg::Phase::released);
    PG_RETURN_VOID();
}
