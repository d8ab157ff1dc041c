// idem.complete(), idem.fail() and idem.release(): how a claim ends, by its token.
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

IDEM_FUNCTION(idem_fail) {
    using namespace idem;
    api::require_writable("idem.fail()", api::read_by_lookup);
    api::Ending ending = api::read_ending(fcinfo, core::State::failed);
    ending.error = pg::jsonb_arg(fcinfo, api::arg_answer);
    if (ending.error == nullptr) pg::report::missing_argument("error");
    if (!JB_ROOT_IS_OBJECT(ending.error))
        pg::report::invalid_argument(
            "error", "It must be an object with sqlstate, message, detail and hint.");
    api::finish(pg::text_arg(fcinfo, api::arg_token), ending);
    PG_RETURN_VOID();
}

IDEM_FUNCTION(idem_release) {
    using namespace idem;
    api::require_writable("idem.release()", api::read_by_lookup);
    api::release(pg::text_arg(fcinfo, 0));
    PG_RETURN_VOID();
}
