// The administration of scopes and secrets: idem.create_scope(), idem.alter_scope(),
// idem.drop_scope() and idem.rotate_secret(), which PUBLIC may not execute; idem.scope_ddl(), for
// the users of a scope; and the trigger idem_internal.announce_change().
//
// Each function locks its table until the transaction ends, so that changes are made one after the
// other. Claims do not wait for them: they follow the committed rules. The first scope of a
// database creates the secrets.
#include "api/admission.hpp"
#include "api/arguments.hpp"
#include "api/scope.hpp"
#include "core/errors.hpp"
#include "core/header.hpp"
#include "core/key.hpp"
#include "pg/boundary.hpp"
#include "pg/compat.hpp"
#include "pg/document.hpp"
#include "pg/open_claims.hpp"
#include "pg/report.hpp"
#include "pg/scope.hpp"
#include "pg/scope_ids.hpp"
#include "pg/secret.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;

enum Argument {
    arg_name,
    arg_ttl,
    arg_lease,
    arg_wait,
    arg_request_required,
    arg_request_exclude,
    arg_tenant_required,
    arg_reject_stale_keys,
    arg_max_attempts,
    arg_claims_per_minute,
    arg_weak_keys,
    arg_store_response,
    arg_response_exclude,
    arg_owner,
    arg_final_sqlstates,
    arg_store_request,
    arg_answer_ttl,
    arg_min_ttl,
    arg_header_exclude,
    arg_tenant_from,
    arg_max_answer_size,
    arg_records,
    arguments,
    arg_force = arguments,          // of alter_scope() only
    arg_if_not_exists = arguments,  // of create_scope() only
    create_arguments
};

constexpr std::array<const char*, create_arguments> argument_names = {"name",
                                                                      "ttl",
                                                                      "lease",
                                                                      "wait",
                                                                      "request_required",
                                                                      "request_exclude",
                                                                      "tenant_required",
                                                                      "reject_stale_keys",
                                                                      "max_attempts",
                                                                      "claims_per_minute",
                                                                      "weak_keys",
                                                                      "store_response",
                                                                      "response_exclude",
                                                                      "owner",
                                                                      "final_sqlstates",
                                                                      "store_request",
                                                                      "answer_ttl",
                                                                      "min_ttl",
                                                                      "header_exclude",
                                                                      "tenant_from",
                                                                      "max_answer_size",
                                                                      "records",
                                                                      "if_not_exists"};

const char* name_of(int argument) {
    return argument_names[static_cast<std::size_t>(argument)];
}

// NULL means no limit, and for the owner the current user.
constexpr bool may_be_null(int argument) {
    return argument == arg_max_attempts || argument == arg_claims_per_minute ||
           argument == arg_owner || argument == arg_answer_ttl || argument == arg_min_ttl;
}

void require_arguments(FunctionCallInfo fcinfo) {
    for (int argument = 0; argument < create_arguments; ++argument)
        if (PG_ARGISNULL(argument) && !may_be_null(argument)) {
            if (argument == arg_name) report::missing_argument(name_of(argument));
            report::null_argument(name_of(argument));
        }
}

void check_name(std::string_view name) {
    if (name.empty() || name.size() > core::max_scope_bytes)
        report::invalid_argument("name", "The name must have 1 to 63 bytes.",
                                 "Pass the name of a family of operations, such as 'payments'.");
}

const Interval* positive_arg(FunctionCallInfo fcinfo, int n) {
    const Interval* interval = pg::interval_arg(fcinfo, n);
    if (interval != nullptr) (void)pg::positive_duration(name_of(n), *interval);
    return interval;
}

const Interval* nonnegative_arg(FunctionCallInfo fcinfo, int n) {
    const Interval* interval = pg::interval_arg(fcinfo, n);
    if (interval != nullptr) (void)pg::nonnegative_duration(name_of(n), *interval);
    return interval;
}

ArrayType* paths_arg(FunctionCallInfo fcinfo, int n) {
    ArrayType* paths = pg::array_arg(fcinfo, n);
    if (paths != nullptr) pg::check_paths(name_of(n), paths);
    return paths;
}

void check_header_names(const char* name, ArrayType* headers) {
    if (ARR_NDIM(headers) > 1)
        report::invalid_argument(name, "The array must have one dimension.",
                                 "Write the names as '{set-cookie,cookie}'.");
    const pg::TextElements elements = pg::elements_of(headers);
    for (int i = 0; i < elements.count; ++i)
        if (!core::is_header_name(elements[i]) || elements[i].size() > core::max_path_bytes)
            report::invalid_argument(
                name, "Each element must be the name of a header, of 1 to 255 bytes.",
                "Write the names as '{set-cookie,cookie}'.");
}

ArrayType* headers_arg(FunctionCallInfo fcinfo, int n) {
    ArrayType* headers = pg::array_arg(fcinfo, n);
    if (headers != nullptr) check_header_names(name_of(n), headers);
    return headers;
}

void check_sqlstates(const char* name, ArrayType* states) {
    if (ARR_NDIM(states) > 1)
        report::invalid_argument(name, "The array must have one dimension.",
                                 "Write the list as '{P0001,23}'.");
    const pg::TextElements elements = pg::elements_of(states);
    for (int i = 0; i < elements.count; ++i)
        if (core::listing_fault(elements[i]) != core::FailureFault::none)
            report::not_a_final_sqlstate(name, elements[i]);
}

ArrayType* sqlstates_arg(FunctionCallInfo fcinfo, int n) {
    ArrayType* states = pg::array_arg(fcinfo, n);
    if (states != nullptr) check_sqlstates(name_of(n), states);
    return states;
}

// A new scope has no limit unless one is given, so only alter_scope() needs a value for "none".
enum class Purpose { create, alter };

// Zero stands for no limit.
const Interval* ttl_limit_arg(FunctionCallInfo fcinfo, int n, Purpose purpose) {
    return purpose == Purpose::create ? positive_arg(fcinfo, n) : nonnegative_arg(fcinfo, n);
}

std::optional<std::int32_t> limit_arg(FunctionCallInfo fcinfo, int n, Purpose purpose) {
    const auto limit = pg::int_arg(fcinfo, n);
    if (!limit || *limit >= 1) return limit;
    if (purpose == Purpose::create)
        report::invalid_argument(name_of(n), "The limit must be at least 1.",
                                 "Pass a limit, or leave the argument out for none.");
    if (limit != pg::no_limit)
        report::invalid_argument(name_of(n), "The limit must be at least 1.",
                                 "Pass a limit, or -1 for none.");
    return limit;
}

std::optional<std::int32_t> rate_arg(FunctionCallInfo fcinfo, Purpose purpose) {
    const auto rate = limit_arg(fcinfo, arg_claims_per_minute, purpose);
    if (rate && *rate != pg::no_limit) require_limits_available(name_of(arg_claims_per_minute));
    return rate;
}

// A larger answer could be stored, but not be read as text.
constexpr std::int32_t min_answer_size = 1024;
constexpr std::int32_t max_answer_size = 512 * 1024 * 1024;

std::optional<std::int32_t> size_arg(FunctionCallInfo fcinfo) {
    const auto size = pg::int_arg(fcinfo, arg_max_answer_size);
    if (size && (*size < min_answer_size || *size > max_answer_size))
        report::invalid_argument(
            "max_answer_size", "The size must be between 1024 and 536870912 bytes.",
            "Pass a number of bytes, such as 65536. Store larger values in a table of your own.");
    return size;
}

std::optional<std::string_view> tenant_from_arg(FunctionCallInfo fcinfo) {
    const auto from = pg::text_arg(fcinfo, arg_tenant_from);
    if (from && !pg::tenant_from_of(*from))
        report::invalid_argument("tenant_from", "The value must be argument or role.",
                                 "Pass 'argument' if callers pass their tenant, or 'role' if it is "
                                 "the role that calls.");
    return from;
}

std::optional<std::string_view> store_request_arg(FunctionCallInfo fcinfo) {
    const auto rule = pg::text_arg(fcinfo, arg_store_request);
    if (rule && !pg::store_request_of(*rule))
        report::invalid_argument(
            "store_request", "The value must be never, unfinished or always.",
            "Pass 'unfinished' if idem.take() is to return requests, or 'always' if conflicts are "
            "to be explained, too.");
    return rule;
}

std::optional<std::string_view> weak_keys_arg(FunctionCallInfo fcinfo) {
    const auto rule = pg::text_arg(fcinfo, arg_weak_keys);
    if (rule && !pg::weak_keys_of(*rule))
        report::invalid_argument(
            "weak_keys", "The value must be allow, warn or reject.",
            "Pass 'warn' to be warned of weak keys, or 'reject' to refuse them.");
    return rule;
}

pg::ScopeRules read_rules(FunctionCallInfo fcinfo, Purpose purpose) {
    return {
        .ttl = positive_arg(fcinfo, arg_ttl),
        .lease = positive_arg(fcinfo, arg_lease),
        .wait = nonnegative_arg(fcinfo, arg_wait),
        .request_required = pg::bool_arg(fcinfo, arg_request_required),
        .request_exclude = paths_arg(fcinfo, arg_request_exclude),
        .tenant_required = pg::bool_arg(fcinfo, arg_tenant_required),
        .reject_stale_keys = pg::bool_arg(fcinfo, arg_reject_stale_keys),
        .max_attempts = limit_arg(fcinfo, arg_max_attempts, purpose),
        .claims_per_minute = rate_arg(fcinfo, purpose),
        .weak_keys = weak_keys_arg(fcinfo),
        .store_response = pg::bool_arg(fcinfo, arg_store_response),
        .response_exclude = paths_arg(fcinfo, arg_response_exclude),
        .final_sqlstates = sqlstates_arg(fcinfo, arg_final_sqlstates),
        .store_request = store_request_arg(fcinfo),
        .answer_ttl = ttl_limit_arg(fcinfo, arg_answer_ttl, purpose),
        .min_ttl = ttl_limit_arg(fcinfo, arg_min_ttl, purpose),
        .header_exclude = headers_arg(fcinfo, arg_header_exclude),
        .tenant_from = tenant_from_arg(fcinfo),
        .max_answer_size = size_arg(fcinfo),
        .records = pg::bool_arg(fcinfo, arg_records),
        .owner = PG_ARGISNULL(arg_owner) ? std::nullopt : std::optional(PG_GETARG_OID(arg_owner)),
        .request_lists = nullptr,
    };
}

// The owner's role gets access to all keys of the scope. The caller must be able to become that
// role, as for ALTER ... OWNER TO.
void check_owner(Oid owner) {
    (void)GetUserNameFromId(owner, false);  // raises when there is no such role
    pg::compat::check_may_become(GetUserId(), owner);
}

// Looks the scope up again under the lock: during the wait for it, the scope may have been dropped
// or given to another owner.
std::int32_t locked_scope(FunctionCallInfo fcinfo, const char* function) {
    const auto name = pg::text_arg(fcinfo, arg_name);
    (void)pg::usable_scope(name, function);
    pg::lock_scopes();
    return pg::usable_scope(name, function).id;
}

// A claim that is open in this transaction was granted by the rules as they are.
void refuse_open_claim(std::int32_t scope) {
    const pg::Claim* claim = pg::newest_open_claim(scope);
    if (claim != nullptr) report::scope_has_open_claim(claim->scope_name, claim->key);
}

// The tenant is a part of a key's digest, and the table is where it is looked for. Counting waits
// for the transactions that have a claim, and keeps others from claiming until this one ends; they
// then ask again.
void check_identity(std::int32_t id, const pg::ScopeRules& rules) {
    const pg::Scope& scope = *pg::find_scope_by_id(id);
    const bool other_tenants =
        rules.tenant_from && pg::tenant_from_of(*rules.tenant_from) != scope.tenant_from;
    const bool other_tables = rules.records && *rules.records != scope.records;
    if (!other_tenants && !other_tables) return;
    const char* name = pstrdup(scope.name);
    const pg::Keys keys = pg::keys_of(id);
    if (keys.any())
        report::live_keys_lose_identity(name, name_of(other_tables ? arg_records : arg_tenant_from),
                                        keys.records, keys.watermarks, keys.until);
}

}  // namespace

ImportedScope checked_scope(HeapTupleHeader row) {
    LOCAL_FCINFO(call, create_arguments);
    InitFunctionCallInfoData(*call, nullptr, create_arguments, InvalidOid, nullptr, nullptr);
    for (int i = 0; i < arguments; ++i) {
        NullableDatum& argument = call->args[i];
        argument.value = GetAttributeByName(row, name_of(i), &argument.isnull);
    }
    call->args[arg_if_not_exists] = {BoolGetDatum(false), false};
    require_arguments(call);
    const std::string_view name = *pg::text_arg(call, arg_name);
    check_name(name);
    pg::ScopeRules rules = read_rules(call, Purpose::create);
    check_owner(*rules.owner);
    bool null;
    rules.request_lists = DatumGetArrayTypeP(GetAttributeByName(row, "request_lists", &null));
    return {DatumGetInt32(GetAttributeByName(row, "id", &null)), name, rules};
}

}  // namespace idem::api

IDEM_FUNCTION(idem_create_scope) {
    using namespace idem;
    api::require_writable("idem.create_scope()");
    api::require_arguments(fcinfo);
    const std::string_view name = *pg::text_arg(fcinfo, api::arg_name);
    api::check_name(name);
    pg::ScopeRules rules = api::read_rules(fcinfo, api::Purpose::create);
    if (!rules.owner) rules.owner = GetUserId();
    api::check_owner(*rules.owner);
    const bool if_not_exists = *pg::bool_arg(fcinfo, api::arg_if_not_exists);
    const auto taken = if_not_exists ? pg::NameTaken::kept_if_equal : pg::NameTaken::refused;
    if (pg::insert_scope(name, rules, taken)) pg::create_secrets();
    PG_RETURN_VOID();
}

IDEM_FUNCTION(idem_alter_scope) {
    using namespace idem;
    api::require_writable("idem.alter_scope()");
    const pg::ScopeRules rules = api::read_rules(fcinfo, api::Purpose::alter);
    const bool force = api::force_arg(fcinfo, api::arg_force);
    const std::int32_t scope = api::locked_scope(fcinfo, "alter_scope");
    if (rules.owner) api::check_owner(*rules.owner);
    api::refuse_open_claim(scope);
    if (!force) api::check_identity(scope, rules);
    pg::update_scope(scope, rules);
    PG_RETURN_VOID();
}

// Reads only the scope, so it also works on a standby.
IDEM_FUNCTION(idem_scope_ddl) {
    using namespace idem;
    api::require_leader("idem.scope_ddl()");
    const pg::Scope& scope = pg::usable_scope(pg::text_arg(fcinfo, 0), "scope_ddl");
    PG_RETURN_TEXT_P(cstring_to_text(pg::scope_definition(scope.id)));
}

// The scope's records expire at once, because no scope has their id any more.
IDEM_FUNCTION(idem_drop_scope) {
    using namespace idem;
    api::require_writable("idem.drop_scope()");
    const std::int32_t scope = api::locked_scope(fcinfo, "drop_scope");
    api::refuse_open_claim(scope);
    pg::delete_scope(scope);
    PG_RETURN_VOID();
}

// Makes a new secret for the fingerprints of new claims.
IDEM_FUNCTION(idem_rotate_secret) {
    using namespace idem;
    api::require_writable("idem.rotate_secret()");
    PG_RETURN_INT32(pg::rotate_fingerprint_secret());
}

// The trigger of idem.scope and idem.secret, which every backend caches. The functions above write
// without the executor and announce their changes themselves; the trigger announces those of a
// superuser's statement, a restored dump or a subscription. It is a row trigger that is always
// enabled, because an apply worker fires no other. TRUNCATE needs no trigger: the server announces
// every change of a table's files.
IDEM_FUNCTION(idem_announce_change) {
    if (!CALLED_AS_TRIGGER(fcinfo)) idem::pg::report::announce_change_called_directly();
    CacheInvalidateRelcache(reinterpret_cast<const TriggerData*>(fcinfo->context)->tg_relation);
    return Datum{0};  // the result of an AFTER trigger is ignored
}
