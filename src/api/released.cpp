// C symbols that the scripts of earlier releases name, and the current one does not: a database has
// the new library from the moment it is installed, and its SQL objects from ALTER EXTENSION idem
// UPDATE on. Until then each keeps to the rules of its release.
#include "api/arguments.hpp"
#include "api/finishing.hpp"
#include "pg/boundary.hpp"
#include "pg/compat.hpp"
#include "pg/report.hpp"

// Up to 0.1.0 EXECUTE on these was PUBLIC's, and the privilege was CREATE on schema idem.
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
Datum idem_forget_0_2(PG_FUNCTION_ARGS);
}

// Up to 0.2.0 these had no transient_sqlstates, and took paths of any notation: the number of the
// arguments tells.
IDEM_FUNCTION(idem_create_scope_0_2) {
    return idem_create_scope_0_3(fcinfo);
}

IDEM_FUNCTION(idem_alter_scope_0_2) {
    return idem_alter_scope_0_3(fcinfo);
}

// Up to 0.2.0 any object would do.
IDEM_FUNCTION(idem_fail) {
    idem::api::require_writable("idem.fail()");
    idem::api::fail(fcinfo, idem::pg::check_is_error_object);
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
    return idem_forget_0_2(fcinfo);
}
