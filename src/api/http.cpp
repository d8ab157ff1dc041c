// idem.http_status() and idem.problem(): errors as HTTP and RFC 9457 put them.
//
// They only compute: immutable, and safe in a parallel worker.
#include "api/arguments.hpp"
#include "core/problem.hpp"
#include "core/sqlstate.hpp"
#include "pg/boundary.hpp"
#include "pg/report.hpp"

namespace idem::api {
namespace {

enum Argument { arg_sqlstate, arg_detail };

std::string_view checked_sqlstate(std::optional<std::string_view> sqlstate) {
    if (!sqlstate) pg::report::missing_argument("sqlstate");
    if (!core::is_sqlstate(*sqlstate))
        pg::report::invalid_argument("sqlstate", "It must have five characters, 0-9 and A-Z.");
    return *sqlstate;
}

void add_member(StringInfo json, const char* name, std::string_view value) {
    appendStringInfo(json, ", \"%s\": ", name);
    escape_json(json, pnstrdup(value.data(), value.size()));
}

// Through text, whose escaping the server knows: no version builds jsonb values as the last did.
Datum problem_document(std::string_view sqlstate, std::optional<std::string_view> detail) {
    const core::Problem problem = core::problem_of(sqlstate);
    StringInfoData json;
    initStringInfo(&json);
    appendStringInfo(&json, "{\"status\": %d", problem.status);
    add_member(&json, "type", problem.type);
    add_member(&json, "title", problem.title);
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
    PG_RETURN_INT32(core::problem_of(sqlstate).status);
}

IDEM_FUNCTION(idem_problem) {
    using namespace idem;
    const auto sqlstate = api::checked_sqlstate(pg::text_arg(fcinfo, api::arg_sqlstate));
    const auto detail = pg::text_arg(fcinfo, api::arg_detail);
    if (detail) api::check_encoding(*detail);
    return api::problem_document(sqlstate, detail);
}
