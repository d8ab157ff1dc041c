// C symbols that only the scripts of earlier releases name. A new library serves the databases of
// the server as soon as it is installed, but their SQL objects stay those of an earlier release
// until ALTER EXTENSION idem UPDATE. Until then, each function keeps the rules of its release.
#include "api/arguments.hpp"
#include "api/finish.hpp"
#include "pg/boundary.hpp"
#include "pg/compat.hpp"
#include "pg/report.hpp"

// In 0.1.0, PUBLIC could execute these functions, and they required CREATE on schema idem.
namespace {

void check_may_create(FunctionCallInfo fcinfo) {
    const Oid schema = get_func_namespace(fcinfo->flinfo->fn_oid);
    if (!idem::pg::compat::may_create_in(schema, GetUserId()))
        idem::pg::report::may_not_administer_scopes(get_func_name(fcinfo->flinfo->fn_oid));
}

}  // namespace

extern "C" {
Datum idem_create_scope_0_3(PG_FUNCTION_ARGS);
Datum idem_alter_scope_0_3(PG_FUNCTION_ARGS);
Datum idem_drop_scope_0_2(PG_FUNCTION_ARGS);
Datum idem_forget_0_3(PG_FUNCTION_ARGS);
Datum idem_lookup_0_3(PG_FUNCTION_ARGS);
}

// Up to 0.2.0 these functions had fewer arguments. The called functions tell the release by the
// number of arguments.
IDEM_FUNCTION(idem_create_scope_0_2) {
    return idem_create_scope_0_3(fcinfo);
}

IDEM_FUNCTION(idem_alter_scope_0_2) {
    return idem_alter_scope_0_3(fcinfo);
}

IDEM_FUNCTION(idem_forget_0_2) {
    return idem_forget_0_3(fcinfo);
}

IDEM_FUNCTION(idem_lookup) {
    return idem_lookup_0_3(fcinfo);
}

// Up to 0.2.0 the error could be any object.
IDEM_FUNCTION(idem_fail) {
    idem::api::require_writable("idem.fail()");
    idem::api::fail(fcinfo, idem::pg::check_is_error_object);
    PG_RETURN_VOID();
}

// Up to 0.2.0 the token was the only argument.
IDEM_FUNCTION(idem_release) {
    idem::api::require_writable("idem.release()");
    idem::api::release(idem::pg::text_arg(fcinfo, 0), {});
    PG_RETURN_VOID();
}

IDEM_FUNCTION(idem_create_scope) {
    check_may_create(fcinfo);
    return idem_create_scope_0_3(fcinfo);
}

IDEM_FUNCTION(idem_alter_scope) {
    check_may_create(fcinfo);
    return idem_alter_scope_0_3(fcinfo);
}

IDEM_FUNCTION(idem_drop_scope) {
    check_may_create(fcinfo);
    return idem_drop_scope_0_2(fcinfo);
}

IDEM_FUNCTION(idem_forget) {
    check_may_create(fcinfo);
    return idem_forget_0_3(fcinfo);
}
