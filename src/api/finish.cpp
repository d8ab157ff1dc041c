// idem.complete(), idem.fail() and idem.release(): how a claim ends, by its token. idem.redacted():
// what complete() would store.
#include "api/arguments.hpp"
#include "api/finishing.hpp"
#include "pg/report.hpp"

namespace idem::api {
namespace {

// The SQL signatures of complete and fail differ only in what the answer means.
enum Argument { arg_token, arg_answer, arg_status, arg_headers, arg_body };

Ending read_ending(FunctionCallInfo fcinfo, core::State state) {
    return {.state = state,
            .status = pg::int_arg(fcinfo, arg_status),
            .headers = pg::jsonb_arg(fcinfo, arg_headers),
            .body = pg::bytea_arg(fcinfo, arg_body)};
}

}  // namespace

void fail(FunctionCallInfo fcinfo, void (*check)(Jsonb* error)) {
    Ending ending = read_ending(fcinfo, core::State::failed);
    ending.error = pg::jsonb_arg(fcinfo, arg_answer);
    if (ending.error == nullptr) pg::report::missing_argument("error");
    check(ending.error);
    finish(pg::text_arg(fcinfo, arg_token), ending);
}

}  // namespace idem::api

IDEM_FUNCTION(idem_complete) {
    using namespace idem;
    api::require_writable("idem.complete()", api::read_by_lookup);
    api::Ending ending = api::read_ending(fcinfo, core::State::completed);
    ending.response = pg::jsonb_arg(fcinfo, api::arg_answer);
    api::finish(pg::text_arg(fcinfo, api::arg_token), ending);
    if (ending.response == nullptr) PG_RETURN_NULL();
    PG_RETURN_JSONB_P(ending.response);
}

IDEM_FUNCTION(idem_fail_0_3) {
    using namespace idem;
    api::require_writable("idem.fail()", api::read_by_lookup);
    api::fail(fcinfo, pg::check_error_object);
    PG_RETURN_VOID();
}

IDEM_FUNCTION(idem_release) {
    using namespace idem;
    api::require_writable("idem.release()", api::read_by_lookup);
    api::release(pg::text_arg(fcinfo, 0));
    PG_RETURN_VOID();
}

// Reads the scope only: writes nothing, and works on a standby.
IDEM_FUNCTION(idem_redacted) {
    using namespace idem;
    PreventCommandIfParallelMode("idem.redacted()");
    Jsonb* response = pg::jsonb_arg(fcinfo, 1);
    const pg::Scope& scope = pg::usable_scope(pg::text_arg(fcinfo, 0), "redacted");
    const Jsonb* stored = api::stored_response(response, &scope);
    if (stored == nullptr) PG_RETURN_NULL();
    PG_RETURN_JSONB_P(stored);
}
