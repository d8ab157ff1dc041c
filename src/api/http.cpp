// idem.http_status() and idem.problem(): errors as HTTP and RFC 9457 put them.
//
// They only compute: immutable, and safe in a parallel worker.
#include "api/arguments.hpp"
#include "core/errors.hpp"
#include "pg/boundary.hpp"
#include "pg/report.hpp"

namespace idem::api {
namespace {

enum Argument { arg_sqlstate, arg_detail };

std::string_view checked_sqlstate(std::optional<std::string_view> sqlstate) {
    if (!sqlstate) pg::report::missing_argument("sqlstate");
    if (!core::is_sqlstate(*sqlstate))
        pg::report::invalid_argument("sqlstate",
                                     "The value must consist of five characters, 0-9 and A-Z.");
    return *sqlstate;
}

void add_member(StringInfo json, const char* name, std::string_view value) {
    appendStringInfo(json, ", \"%s\": ", name);
    escape_json(json, pnstrdup(value.data(), value.size()));
}

// For errors other than idem's own, "about:blank" says that the status is all there is to know.
const char* type_of(const core::Error& error) {
    if (error.name.empty()) return "about:blank";
    return psprintf("urn:idem:problem:%s", pnstrdup(error.name.data(), error.name.size()));
}

// Through text, whose escaping the server knows: no version builds jsonb values as the last did.
Datum problem_document(std::string_view sqlstate, std::optional<std::string_view> detail) {
    const core::Error error = core::error_of(sqlstate);
    StringInfoData json;
    initStringInfo(&json);
    appendStringInfo(&json, "{\"status\": %d", error.http_status);
    add_member(&json, "type", type_of(error));
    add_member(&json, "title", error.title);
    add_member(&json, "sqlstate", sqlstate);
    if (detail) add_member(&json, "detail", *detail);
    appendStringInfoChar(&json, '}');
    return DirectFunctionCall1(jsonb_in, CStringGetDatum(json.data));
}

}  // namespace
}  // namespace idem::api

IDEM_FUNCTION(idem_http_status) {
    using namespace idem;
    const auto sqlstate = api::checked_sqlstate(pg::text_arg(fcinfo, api::arg_sqlstate));
    PG_RETURN_INT32(core::error_of(sqlstate).http_status);
}

IDEM_FUNCTION(idem_problem) {
    using namespace idem;
    const auto sqlstate = api::checked_sqlstate(pg::text_arg(fcinfo, api::arg_sqlstate));
    const auto detail = pg::text_arg(fcinfo, api::arg_detail);
    if (detail) api::check_encoding(*detail);
    return api::problem_document(sqlstate, detail);
}
