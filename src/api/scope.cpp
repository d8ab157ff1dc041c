// idem.create_scope(): a named family of operations, and who may use it.
//
// The scope table is locked until the transaction ends, so that two sessions cannot create the same
// scope. The first scope of a database brings the secrets with it.
#include "api/arguments.hpp"
#include "core/key.hpp"
#include "core/path_filter.hpp"
#include "pg/compat.hpp"
#include "pg/duration.hpp"
#include "pg/report.hpp"
#include "pg/secret.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;

enum Argument {
    arg_name,
    arg_ttl,
    arg_wait,
    arg_request_required,
    arg_request_exclude,
    arg_tenant_required,
    arg_owner
};

std::string_view checked_name(std::optional<std::string_view> name) {
    if (!name) report::missing_argument("name");
    if (name->empty() || name->size() > core::max_scope_bytes)
        report::invalid_argument("name", "It must have 1 to 63 bytes.");
    return *name;
}

// Whoever creates a scope hands its keys to the owner, so he must be able to become the owner.
Oid checked_owner(FunctionCallInfo fcinfo) {
    const Oid owner = PG_ARGISNULL(arg_owner) ? GetUserId() : PG_GETARG_OID(arg_owner);
    const Oid schema = get_func_namespace(fcinfo->flinfo->fn_oid);
    if (!pg::compat::may_create_in(schema, GetUserId()))
        ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
                        errmsg("permission denied to create a scope"),
                        errdetail("It needs the privilege CREATE on schema idem."),
                        errhint("Have a superuser run GRANT CREATE ON SCHEMA idem TO your role.")));
    (void)GetUserNameFromId(owner, false);  // raises when there is no such role
    pg::compat::check_may_become(GetUserId(), owner);
    return owner;
}

bool bool_arg(FunctionCallInfo fcinfo, int n, const char* name) {
    if (PG_ARGISNULL(n)) report::missing_argument(name);
    return PG_GETARG_BOOL(n);
}

ArrayType* checked_exclude(FunctionCallInfo fcinfo) {
    if (PG_ARGISNULL(arg_request_exclude)) report::missing_argument("request_exclude");
    ArrayType* paths = PG_GETARG_ARRAYTYPE_P(arg_request_exclude);
    if (ARR_NDIM(paths) > 1)
        report::invalid_argument("request_exclude", "It must have one dimension.");
    Datum* elements;
    bool* nulls;
    int count;
    deconstruct_array(paths, TEXTOID, -1, false, TYPALIGN_INT, &elements, &nulls, &count);
    for (int i = 0; i < count; ++i) {
        const std::size_t size = nulls[i] ? 0 : pg::view_of(DatumGetTextPP(elements[i])).size();
        if (size == 0 || size > core::max_path_bytes)
            report::invalid_argument("request_exclude",
                                     "Each path must have 1 to 255 bytes, such as "
                                     "\"meta.trace_id\".");
    }
    return paths;
}

}  // namespace
}  // namespace idem::api

IDEM_FUNCTION(idem_create_scope) {
    using namespace idem;
    api::require_writable("idem.create_scope()");
    const std::string_view name = api::checked_name(pg::text_arg(fcinfo, api::arg_name));
    const Interval* ttl = pg::interval_arg(fcinfo, api::arg_ttl);
    const Interval* wait = pg::interval_arg(fcinfo, api::arg_wait);
    if (ttl == nullptr) pg::report::missing_argument("ttl");
    if (wait == nullptr) pg::report::missing_argument("wait");
    (void)pg::positive_duration("ttl", *ttl);
    (void)pg::nonnegative_duration("wait", *wait);
    const pg::NewScope scope{
        .name = name,
        .owner = api::checked_owner(fcinfo),
        .ttl = ttl,
        .wait = wait,
        .request_required = api::bool_arg(fcinfo, api::arg_request_required, "request_required"),
        .tenant_required = api::bool_arg(fcinfo, api::arg_tenant_required, "tenant_required"),
        .request_exclude = api::checked_exclude(fcinfo),
    };
    pg::insert_scope(scope);
    pg::create_secrets();
    PG_RETURN_VOID();
}
