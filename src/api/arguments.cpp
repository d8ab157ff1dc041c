#include "api/arguments.hpp"

#include "pg/server/guc.hpp"
#include "pg/server/test_seam.hpp"
#include "pg/store/version.hpp"

extern "C" {
#include "tcop/pquery.h"
}

namespace idem::api {
namespace {

[[noreturn]] void raise_invalid(report::OwnError error, const char* message, const char* detail,
                                const char* hint) {
    ereport(ERROR, (report::own_error(error), errmsg_internal("%s", message),
                    errdetail_internal("%s", detail), errhint("%s", hint)));
}

// A name of 1 to 255 bytes. what, argument and hint are for the error; element is the position in
// an array, from 1, or 0.
std::string_view checked(std::optional<std::string_view> name, const char* what,
                         const char* argument, const char* hint, int element = 0) {
    const auto reject = [=](const char* fault, const char* detail) {
        const char* place = element == 0 ? "The" : psprintf("Element %d of the", element);
        raise_invalid("invalid_key", psprintf("%s %s", what, fault),
                      psprintf("%s argument \"%s\" %s.", place, argument, detail), hint);
    };
    if (!name) reject("must not be null", "is null");
    if (name->empty()) reject("must not be empty", "is an empty string");
    if (name->size() > core::max_key_bytes)
        reject("is too long", psprintf("has %zu bytes; at most %zu are allowed", name->size(),
                                       core::max_key_bytes));
    check_encoding(*name);
    return *name;
}

bool only_explains() {
    if (ActivePortal == nullptr || ActivePortal->commandTag != CMDTAG_EXPLAIN) return false;
    Node* statement = linitial_node(PlannedStmt, ActivePortal->stmts)->utilityStmt;
    const List* options = castNode(ExplainStmt, statement)->options;
    bool analyze = false;
    for (int i = 0; i < list_length(options); ++i) {
        auto* option = list_nth_node(DefElem, options, i);
        if (strcmp(option->defname, "analyze") == 0) analyze = defGetBoolean(option);
    }
    return !analyze;
}

// What a superuser may do, only a superuser's own code does, not a SECURITY DEFINER function of
// another role that the superuser calls.
bool may_act_for(Oid caller, const char* role) {
    const Oid actor = superuser_arg(caller) ? GetUserId() : caller;
    const Oid oid = get_role_oid(role, true);
    return OidIsValid(oid) ? has_privs_of_role(actor, oid) : superuser_arg(actor);
}

using DigestOf = bool (*)(const core::QualifiedKey&, core::Digest&);

pg::Key qualify(const pg::Scope& scope, std::string_view tenant, std::string_view key, Oid table,
                DigestOf digest_of) {
    tenant = tenant_in(scope, tenant);
    pg::Key qualified{scope.id, tenant, key, {}, table};
    if (!digest_of({scope.id, utf8(tenant), utf8(key)}, qualified.digest)) report::crypto_failure();
    return qualified;
}

}  // namespace

void require_leader(const char* function) {
    if (!IsInParallelMode()) return;
    ereport(ERROR, (errcode(ERRCODE_INVALID_TRANSACTION_STATE),
                    errmsg("cannot execute idem.%s() during a parallel operation", function),
                    errdetail("A parallel worker knows neither its leader's claims nor the newest "
                              "scopes."),
                    errhint("Mark the functions that call it as PARALLEL UNSAFE.")));
}

void require_writable(const char* function, const char* reading) {
    // In an EXPLAIN without ANALYZE only the planner calls functions, to compute constants and
    // estimates. If the query runs afterwards, a function cannot tell whether the planner calls it.
    if (only_explains())
        ereport(ERROR,
                (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                 errmsg("cannot execute idem.%s() while a query is being planned", function),
                 errdetail("EXPLAIN does not run the query, but the planner calls functions "
                           "that are declared STABLE or IMMUTABLE."),
                 errhint("Declare the function that calls idem.%s() as VOLATILE, which is the "
                         "default.",
                         function)));
    const bool standby = RecoveryInProgress();
    if (standby || XactReadOnly)
        ereport(
            ERROR,
            (errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
             standby ? errmsg("cannot execute idem.%s() during recovery", function)
                     : errmsg("cannot execute idem.%s() in a read-only transaction", function),
             errdetail("The function must be able to write, even where a call finds nothing to "
                       "write."),
             errhint("%s%s",
                     standby ? "Call it on the primary." : "Call it in a read-write transaction.",
                     reading)));
    require_leader(function);
    if (InSecurityRestrictedOperation())
        ereport(ERROR,
                (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
                 errmsg("cannot execute idem.%s() within security-restricted operation", function),
                 errdetail("Index expressions and materialized views are evaluated in such an "
                           "operation, and, from PostgreSQL 16 on, triggers of a replicated table "
                           "whose owner does not own the subscription."),
                 errhint("Call the function in an ordinary statement. For a replicated table, let "
                         "one role own both the table and the subscription.")));
    pg::require_library();
    (void)pg::at_seam(pg::seam::Event::call, function);
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
        raise_invalid("invalid_tenant", "tenant is too long",
                      psprintf("The %s has %zu bytes; at most %zu are allowed.",
                               tenant ? "argument \"tenant\"" : "setting \"idem.tenant\"",
                               meant.size(), core::max_tenant_bytes),
                      tenant ? "Pass a tenant of at most 255 bytes."
                             : "Set \"idem.tenant\" to at most 255 bytes.");
    check_encoding(meant);
    return meant;
}

bool switch_arg(FunctionCallInfo fcinfo, int n, const char* name) {
    const auto given = pg::value_arg<bool>(fcinfo, n);
    if (!given) report::null_argument(name);
    return *given;
}

void require_tenant(const pg::Scope& scope, std::string_view tenant) {
    if (!scope.tenant_required || !tenant.empty()) return;
    raise_invalid("invalid_tenant", "tenant is missing",
                  psprintf("Scope \"%s\" requires a tenant.", scope.name),
                  "Pass the argument \"tenant\", or set \"idem.tenant\".");
}

std::string_view tenant_in(const pg::Scope& scope, std::string_view tenant) {
    if (scope.tenant_from == pg::TenantFrom::argument) return tenant;
    // The role that has logged in or was taken on by SET ROLE: inside a SECURITY DEFINER function
    // it is the role that calls the function, not the function's owner. Not so where autovacuum, or
    // another role, maintains a table and runs functions that the table's owner has put there.
    const Oid role = InSecurityRestrictedOperation() ? GetUserId() : GetOuterUserId();
    const char* caller = GetUserNameFromId(role, false);
    if (tenant.empty() || tenant == caller) return caller;
    const char* named = report::c_string(tenant);
    if (!may_act_for(role, named))
        ereport(ERROR,
                (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
                 errmsg("permission denied for tenant \"%s\"", named),
                 errdetail("In scope \"%s\", the tenant is the role that calls, here \"%s\".",
                           scope.name, caller),
                 errhint("Leave the tenant out. To act for another tenant, the calling role needs "
                         "the privileges of the role of that name.")));
    return tenant;
}

pg::Key key_of(const pg::Scope& scope, std::string_view tenant, std::string_view key) {
    return qualify(scope, tenant, key, pg::records_of(scope), core::key_digest);
}

text* key_text(Datum key, Oid declared, const char* argument) {
    if (declared == TEXTOID || declared == VARCHAROID || !OidIsValid(declared))
        return DatumGetTextPP(key);
    const Oid type = declared == UUIDOID ? declared : getBaseType(declared);
    if (type == BPCHAROID) return DatumGetTextPP(DirectFunctionCall1(rtrim1, key));
    if (type != UUIDOID && TypeCategory(type) != TYPCATEGORY_STRING)
        report::invalid_argument(
            argument,
            psprintf("A key is a text or a uuid, and the argument has the type %s.",
                     format_type_be(declared)),
            "Pass a text that is the same in every session, such as 4711::text. "
            "That of a timestamp depends on TimeZone, that of a bytea on bytea_output.");
    return cstring_to_text(pg::text_of_value(type, {key, false}));
}

KeyCall read_key(FunctionCallInfo fcinfo, int arg_tenant, const char* function) {
    std::optional<std::string_view> given;
    if (!PG_ARGISNULL(arg_key))
        given = pg::view_of(
            key_text(PG_GETARG_DATUM(arg_key), get_fn_expr_argtype(fcinfo->flinfo, arg_key)));
    const std::string_view key = checked_key(given);
    const std::string_view tenant = checked_tenant(pg::text_arg(fcinfo, arg_tenant));
    const pg::Scope& scope = pg::usable_scope(pg::text_arg(fcinfo, arg_scope), function);
    return {&scope, key_of(scope, tenant, key)};
}

KeyCall read_source(FunctionCallInfo fcinfo, const char* function) {
    constexpr int arg_tenant = 3;
    const std::string_view source =
        checked(pg::text_arg(fcinfo, arg_key), "source", "source",
                "Pass a name of 1 to 255 bytes, such as a topic and its partition.");
    const std::string_view tenant = checked_tenant(pg::text_arg(fcinfo, arg_tenant));
    const pg::Scope& scope = pg::usable_scope(pg::text_arg(fcinfo, arg_scope), function);
    return {&scope, qualify(scope, tenant, source, pg::common_records, core::source_digest)};
}

}  // namespace idem::api
