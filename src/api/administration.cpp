#include "api/administration.hpp"

#include "pg/compat.hpp"

namespace idem::api {

void check_may_create(FunctionCallInfo fcinfo, const char* function) {
    const Oid schema = get_func_namespace(fcinfo->flinfo->fn_oid);
    if (!pg::compat::may_create_in(schema, GetUserId()))
        ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
                        errmsg("permission denied to administer scopes"),
                        errdetail("idem.%s() needs the privilege CREATE on schema idem.", function),
                        errhint("Have a superuser run GRANT CREATE ON SCHEMA idem TO your role.")));
}

const pg::Scope& administered_scope(FunctionCallInfo fcinfo, std::optional<std::string_view> name,
                                    const char* function) {
    const pg::Scope& scope = pg::usable_scope(name, function);
    check_may_create(fcinfo, function);
    return scope;
}

}  // namespace idem::api
