// The administration of scopes and secrets: idem.create_scope(), idem.alter_scope(),
// idem.drop_scope() and idem.rotate_secret(), which PUBLIC may not execute; idem.scope_ddl(), for
// the users of a scope; and the trigger idem_internal.announce_change().
//
// Each function locks its table until the transaction ends, so that changes are made one after the
// other. Claims do not wait for them: they follow the committed rules. The first scope of a
// database creates the secrets.
#include "api/scope.hpp"

#include "api/arguments.hpp"
#include "core/key.hpp"
#include "pg/boundary.hpp"
#include "pg/compat.hpp"
#include "pg/open_claims.hpp"
#include "pg/report.hpp"
#include "pg/scope_ids.hpp"
#include "pg/scope_table.hpp"
#include "pg/secret.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;

// The arguments of create_scope() and alter_scope().
constexpr int arg_name = 0;
constexpr int arg_first_setting = 1;
constexpr int arg_settings = arg_first_setting + static_cast<int>(pg::named_settings);
constexpr int arg_owner = arg_settings + 1;
constexpr int arg_last = arg_owner + 1;  // if_not_exists; force

// In create_scope(), NULL or a default; in alter_scope(), NULL leaves the setting as it is.
enum class Purpose { create, alter };

NullableDatum named_argument(FunctionCallInfo fcinfo, std::size_t setting, Purpose purpose) {
    if (setting >= pg::named_settings)
        return purpose == Purpose::create ? pg::preset_value(pg::settings[setting])
                                          : NullableDatum{Datum{0}, true};
    return fcinfo->args[arg_first_setting + static_cast<int>(setting)];
}

// A call of create_scope() may pass the default, which looks like no argument.
bool is_passed(const pg::Setting& setting, NullableDatum argument, Purpose purpose) {
    if (argument.isnull) return false;
    return purpose == Purpose::alter ||
           !pg::same_value(setting.type, argument, pg::preset_value(setting));
}

const char* known_settings() {
    StringInfoData list;
    initStringInfo(&list);
    for (const pg::Setting& each : pg::settings)
        appendStringInfo(&list, "%s%s", list.len == 0 ? "" : ", ", each.name);
    return list.data;
}

[[noreturn]] void refuse_element(std::string_view element, const char* why) {
    report::invalid_argument(
        "settings", psprintf("Element \"%s\" %s.", report::c_string(element), why),
        psprintf("Write each element as name=value, once. The names are %s.", known_settings()));
}

// An element of the argument "settings": name=value.
void read_element(FunctionCallInfo fcinfo, std::string_view element, Purpose purpose,
                  pg::ScopeRules& rules) {
    const std::size_t equals = element.find('=');
    if (equals == std::string_view::npos) refuse_element(element, "has no \"=\"");
    const auto which = pg::find_setting(element.substr(0, equals));
    if (!which) refuse_element(element, "is not of a setting");
    const pg::Setting& setting = pg::settings[*which];
    if (rules.values[*which] ||
        is_passed(setting, named_argument(fcinfo, *which, purpose), purpose))
        refuse_element(element, "is of a setting that the call has passed before");
    const char* text = report::c_string(element.substr(equals + 1));
    rules.values[*which] = pg::checked_value(setting, {pg::value_of_text(setting, text), false});
}

pg::ScopeRules read_rules(FunctionCallInfo fcinfo, Purpose purpose) {
    pg::ScopeRules rules{};
    ArrayType* list = pg::array_arg(fcinfo, arg_settings);
    if (list == nullptr && purpose == Purpose::create) report::null_argument("settings");
    if (list != nullptr) {
        const pg::TextElements elements = pg::elements_of(list);
        for (int i = 0; i < elements.count; ++i) read_element(fcinfo, elements[i], purpose, rules);
    }
    for (std::size_t i = 0; i < pg::settings.size(); ++i) {
        const NullableDatum argument = named_argument(fcinfo, i, purpose);
        if (!rules.values[i] && (purpose == Purpose::create || !argument.isnull))
            rules.values[i] = pg::checked_value(pg::settings[i], argument);
    }
    if (!PG_ARGISNULL(arg_owner)) rules.owner = PG_GETARG_OID(arg_owner);
    return rules;
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
    if (claim == nullptr) return;
    ereport(ERROR,
            (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
             errmsg("cannot change scope \"%s\" while this transaction has an open claim in it",
                    report::c_string(claim->scope_name)),
             errdetail("This transaction has claimed key \"%s\".", report::c_string(claim->key)),
             errhint("Complete or release the claim first, or change the scope in a transaction of "
                     "its own.")));
}

bool changes(const pg::ScopeRules& rules, std::string_view name, Datum present) {
    const std::size_t which = *pg::find_setting(name);
    return rules.values[which] &&
           !pg::same_value(pg::settings[which].type, *rules.values[which], {present, false});
}

// The tenant is a part of a key's digest, and the table is where it is looked for. Counting waits
// for the transactions that have a claim, and keeps others from claiming until this one ends; they
// then ask again.
void check_identity(std::int32_t id, const pg::ScopeRules& rules) {
    const pg::Scope scope = *pg::find_scope_by_id(id);
    const std::string_view tenant_from =
        pg::words<pg::TenantFrom>[static_cast<std::size_t>(scope.tenant_from)];
    const bool other_tenants =
        changes(rules, "tenant_from", PointerGetDatum(pg::text_of(tenant_from)));
    const bool other_tables = changes(rules, "records", BoolGetDatum(scope.records));
    if (!other_tenants && !other_tables) return;
    const pg::Keys keys = pg::keys_of(id);
    if (!keys.any()) return;
    const char* expiry = keys.records == 0 ? ""
                                           : psprintf(" The last record expires at %s.",
                                                      timestamptz_to_str(keys.until));
    ereport(ERROR,
            (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
             errmsg("cannot change \"%s\" of scope \"%s\" while it has live keys",
                    other_tables ? "records" : "tenant_from", scope.name),
             errdetail("Retries would not find their records, and would run the operations again. "
                       "Unexpired records: %lld; watermarks, which do not expire: %lld.%s",
                       static_cast<long long>(keys.records),
                       static_cast<long long>(keys.watermarks), expiry),
             errhint("Create another scope for new keys, or change this one when its records have "
                     "expired. To give its keys up, pass \"force\" => true.")));
}

}  // namespace

void check_name(std::string_view name) {
    if (name.empty() || name.size() > core::max_scope_bytes)
        report::invalid_argument("name", "The name must have 1 to 63 bytes.",
                                 "Pass the name of a family of operations, such as 'payments'.");
}

void check_owner(Oid owner) {
    (void)GetUserNameFromId(owner, false);  // raises when there is no such role
    pg::compat::check_may_become(GetUserId(), owner);
}

}  // namespace idem::api

IDEM_FUNCTION(idem_create_scope) {
    using namespace idem;
    api::require_writable("idem.create_scope()");
    const auto name = pg::text_arg(fcinfo, api::arg_name);
    if (!name) pg::report::missing_argument("name");
    api::check_name(*name);
    pg::ScopeRules rules = api::read_rules(fcinfo, api::Purpose::create);
    if (!rules.owner) rules.owner = GetUserId();
    api::check_owner(*rules.owner);
    const auto if_not_exists = pg::bool_arg(fcinfo, api::arg_last);
    if (!if_not_exists) pg::report::null_argument("if_not_exists");
    const auto taken = *if_not_exists ? pg::NameTaken::kept_if_equal : pg::NameTaken::refused;
    if (pg::insert_scope(*name, rules, taken)) pg::create_secrets();
    PG_RETURN_VOID();
}

IDEM_FUNCTION(idem_alter_scope) {
    using namespace idem;
    api::require_writable("idem.alter_scope()");
    const pg::ScopeRules rules = api::read_rules(fcinfo, api::Purpose::alter);
    const bool force = api::force_arg(fcinfo, api::arg_last);
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
    using namespace idem;
    if (!CALLED_AS_TRIGGER(fcinfo))
        ereport(ERROR,
                (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
                 errmsg("idem_internal.announce_change() was not called as a trigger"),
                 errdetail("It is the trigger function of tables idem.scope and idem.secret."),
                 errhint("Change scopes with idem.alter_scope(), which announces the change.")));
    CacheInvalidateRelcache(reinterpret_cast<const TriggerData*>(fcinfo->context)->tg_relation);
    return Datum{0};  // the result of an AFTER trigger is ignored
}
