#include "api/arguments.hpp"

#include "core/key.hpp"
#include "pg/guc.hpp"
#include "pg/report.hpp"
#include "pg/test_seam.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;

[[noreturn]] void refuse(report::OwnError error, const char* message, const char* detail,
                         const char* hint) {
    ereport(ERROR, (report::own_error(error), errmsg_internal("%s", message),
                    errdetail_internal("%s", detail), errhint("%s", hint)));
}

// A name of 1 to 255 bytes. what, argument and hint are for the error; element is the position in
// an array, from 1, or 0.
std::string_view checked(std::optional<std::string_view> name, const char* what,
                         const char* argument, const char* hint, int element = 0) {
    const auto place = [=] {
        return element == 0 ? psprintf("The argument \"%s\"", argument)
                            : psprintf("Element %d of the argument \"%s\"", element, argument);
    };
    if (!name)
        refuse("invalid_key", psprintf("%s must not be null", what),
               psprintf("%s is null.", place()), hint);
    if (name->empty())
        refuse("invalid_key", psprintf("%s must not be empty", what),
               psprintf("%s is an empty string.", place()), hint);
    if (name->size() > core::max_key_bytes)
        refuse("invalid_key", psprintf("%s is too long", what),
               psprintf("%s has %zu bytes; at most %zu are allowed.", place(), name->size(),
                        core::max_key_bytes),
               hint);
    check_encoding(*name);
    return *name;
}

// Whether the client's statement is an EXPLAIN without ANALYZE.
bool only_explains() {
    if (ActivePortal == nullptr || list_length(ActivePortal->stmts) != 1) return false;
    const Node* statement = linitial_node(PlannedStmt, ActivePortal->stmts)->utilityStmt;
    if (statement == nullptr || !IsA(statement, ExplainStmt)) return false;
    const List* options = reinterpret_cast<const ExplainStmt*>(statement)->options;
    bool analyze = false;
    for (int i = 0; i < list_length(options); ++i) {
        auto* option = list_nth_node(DefElem, options, i);
        if (strcmp(option->defname, "analyze") == 0) analyze = defGetBoolean(option);
    }
    return !analyze;
}

}  // namespace

void require_leader(const char* call) {
    if (!IsInParallelMode()) return;
    ereport(ERROR, (errcode(ERRCODE_INVALID_TRANSACTION_STATE),
                    errmsg("cannot execute %s during a parallel operation", call),
                    errdetail("A parallel worker knows neither its leader's claims nor the newest "
                              "scopes."),
                    errhint("Mark the functions that call it as PARALLEL UNSAFE.")));
}

void require_writable(const char* call, const char* reading) {
    // In an EXPLAIN without ANALYZE only the planner calls functions, to compute constants and
    // estimates. If the query runs afterwards, a function cannot tell whether the planner calls it.
    if (only_explains())
        ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                        errmsg("cannot execute %s while a query is being planned", call),
                        errdetail("EXPLAIN does not run the query, but the planner calls functions "
                                  "that are declared STABLE or IMMUTABLE."),
                        errhint("Declare the function that calls %s as VOLATILE, which is the "
                                "default.",
                                call)));
    const bool standby = RecoveryInProgress();
    if (standby || XactReadOnly)
        ereport(
            ERROR,
            (errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
             standby ? errmsg("cannot execute %s during recovery", call)
                     : errmsg("cannot execute %s in a read-only transaction", call),
             errdetail("The function must be able to write, even where a call finds nothing to "
                       "write."),
             errhint("%s%s",
                     standby ? "Call it on the primary." : "Call it in a read-write transaction.",
                     reading)));
    require_leader(call);
    if (InSecurityRestrictedOperation())
        ereport(ERROR,
                (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
                 errmsg("cannot execute %s within security-restricted operation", call),
                 errdetail("Index expressions and materialized views, for example, are evaluated "
                           "in such an operation."),
                 errhint("Call the function in an ordinary statement.")));
    (void)pg::at_seam(pg::seam::Event::call, call);
}

void check_encoding(std::string_view text) {
    (void)pg_verify_mbstr(GetDatabaseEncoding(), text.data(), static_cast<int>(text.size()), false);
}

std::string_view utf8(std::string_view text) {
    const int length = static_cast<int>(text.size());
    const char* converted = pg_server_to_any(text.data(), length, PG_UTF8);
    return converted == text.data() ? text : std::string_view(converted);
}

std::string_view checked_key(std::optional<std::string_view> key, int position) {
    return checked(key, "idempotency key", position == 0 ? "key" : "keys",
                   "Pass an idempotency key of 1 to 255 bytes, such as a UUID.", position);
}

std::string_view checked_tenant(std::optional<std::string_view> tenant) {
    const std::string_view meant = tenant ? *tenant : std::string_view(pg::guc::tenant);
    if (meant.size() > core::max_tenant_bytes)
        refuse("invalid_tenant", "tenant is too long",
               psprintf("The %s has %zu bytes; at most %zu are allowed.",
                        tenant ? "argument \"tenant\"" : "setting \"idem.tenant\"", meant.size(),
                        core::max_tenant_bytes),
               tenant ? "Pass a tenant of at most 255 bytes."
                      : "Set \"idem.tenant\" to at most 255 bytes.");
    check_encoding(meant);
    return meant;
}

bool force_arg(FunctionCallInfo fcinfo, int n) {
    const auto force = pg::bool_arg(fcinfo, n);
    if (!force) report::null_argument("force");
    return *force;
}

namespace {

// The role that has logged in or was taken on by SET ROLE: inside a SECURITY DEFINER function it is
// the role that calls the function, not the function's owner.
const char* caller_name() {
    return GetUserNameFromId(GetOuterUserId(), false);
}

// Whether the caller could take on the role of this name.
bool may_act_for(const char* role) {
    const Oid oid = get_role_oid(role, true);
    return OidIsValid(oid) ? has_privs_of_role(GetOuterUserId(), oid)
                           : superuser_arg(GetOuterUserId());
}

using DigestOf = bool (*)(const core::QualifiedKey&, core::Digest&);

pg::KeyName named(const pg::Scope& scope, std::string_view tenant, std::string_view key, Oid table,
                  DigestOf digest_of) {
    tenant = tenant_in(scope, tenant);
    pg::KeyName name{scope.id, tenant, key, {}, table};
    if (!digest_of({scope.id, utf8(tenant), utf8(key)}, name.digest)) report::crypto_failure();
    return name;
}

}  // namespace

void require_tenant(const pg::Scope& scope, std::string_view tenant) {
    if (!scope.tenant_required || !tenant.empty()) return;
    refuse("invalid_tenant", "tenant is missing",
           psprintf("Scope \"%s\" requires a tenant.", scope.name),
           "Pass the argument \"tenant\", or set \"idem.tenant\".");
}

std::string_view tenant_in(const pg::Scope& scope, std::string_view tenant) {
    if (scope.tenant_from == pg::TenantFrom::argument) return tenant;
    const char* caller = caller_name();
    if (tenant.empty() || tenant == caller) return caller;
    const char* named = report::c_string(tenant);
    if (!may_act_for(named))
        ereport(ERROR,
                (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
                 errmsg("permission denied for tenant \"%s\"", named),
                 errdetail("In scope \"%s\", the tenant is the role that calls, here \"%s\".",
                           scope.name, caller),
                 errhint("Leave the tenant out. To act for another tenant, the calling role needs "
                         "the privileges of the role of that name.")));
    return tenant;
}

pg::KeyName key_name(const pg::Scope& scope, std::string_view tenant, std::string_view key) {
    return named(scope, tenant, key, pg::records_of(scope), core::key_digest);
}

text* key_text(Datum key, Oid declared) {
    if (declared == TEXTOID || declared == VARCHAROID || !OidIsValid(declared))
        return DatumGetTextPP(key);
    const Oid type = declared == UUIDOID ? declared : getBaseType(declared);
    if (type == BPCHAROID) return DatumGetTextPP(DirectFunctionCall1(rtrim1, key));
    if (type != UUIDOID && TypeCategory(type) != TYPCATEGORY_STRING)
        report::invalid_argument("key",
                                 psprintf("A key is a text or a uuid, and the argument has the "
                                          "type %s.",
                                          format_type_be(declared)),
                                 "Pass the key as text, such as 4711::text.");
    Oid output;
    bool is_varlena;
    getTypeOutputInfo(type, &output, &is_varlena);
    return cstring_to_text(OidOutputFunctionCall(output, key));
}

namespace {

std::optional<std::string_view> key_arg(FunctionCallInfo fcinfo) {
    if (PG_ARGISNULL(arg_key)) return std::nullopt;
    return pg::view_of(
        key_text(PG_GETARG_DATUM(arg_key), get_fn_expr_argtype(fcinfo->flinfo, arg_key)));
}

}  // namespace

KeyCall read_key(FunctionCallInfo fcinfo, int arg_tenant, const char* function) {
    const std::string_view key = checked_key(key_arg(fcinfo));
    const std::string_view tenant = checked_tenant(pg::text_arg(fcinfo, arg_tenant));
    const pg::Scope& scope = pg::usable_scope(pg::text_arg(fcinfo, arg_scope), function);
    return {&scope, key_name(scope, tenant, key)};
}

KeyCall read_source(FunctionCallInfo fcinfo, int arg_tenant, const char* function) {
    const std::string_view source =
        checked(pg::text_arg(fcinfo, arg_key), "source", "source",
                "Pass a name of 1 to 255 bytes, such as a topic and its partition.");
    const std::string_view tenant = checked_tenant(pg::text_arg(fcinfo, arg_tenant));
    const pg::Scope& scope = pg::usable_scope(pg::text_arg(fcinfo, arg_scope), function);
    return {&scope, named(scope, tenant, source, pg::common_records, core::source_digest)};
}

}  // namespace idem::api
