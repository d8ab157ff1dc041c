// The administration of scopes and secrets: idem.create_scope(), idem.alter_scope(),
// idem.drop_scope() and idem.rotate_secret(), which PUBLIC may not execute; idem.scope_ddl(), for
// the users of a scope; and the trigger idem_internal.announce_change().
//
// Each function locks its table until the transaction ends, so that changes are made one after the
// other. Claims do not wait for them: they follow the committed rules. The first scope of a
// database creates the secrets.
#include "api/arguments.hpp"
#include "pg/open_claims.hpp"
#include "pg/store/scope_ids.hpp"
#include "pg/store/scope_table.hpp"
#include "pg/store/secret.hpp"

namespace idem::api {
namespace {

// The arguments of create_scope() and alter_scope().
constexpr int arg_name = 0;
constexpr int arg_first_setting = 1;
constexpr int arg_settings = arg_first_setting + static_cast<int>(pg::named_settings);
constexpr int arg_owner = arg_settings + 1;
constexpr int arg_last = arg_owner + 1;  // if_not_exists; force

// In create_scope(), NULL is a value or refused; in alter_scope(), it leaves the setting as it is.
enum class Purpose { create, alter };

[[noreturn]] void refuse_element(std::string_view element, const char* why) {
    StringInfoData names;
    initStringInfo(&names);
    for (const pg::Setting& each : pg::settings)
        appendStringInfo(&names, "%s%s", names.len == 0 ? "" : ", ", each.name);
    report::invalid_argument(
        "settings", psprintf("Element \"%s\" %s.", report::c_string(element), why),
        psprintf("Write each element as name=value, once. The names are %s.", names.data));
}

using Passed = std::array<bool, pg::settings.size()>;

// An element of the argument "settings": name=value.
void read_element(std::string_view element, Passed& passed, pg::ScopeRow& row) {
    const std::size_t equals = element.find('=');
    if (equals == std::string_view::npos) refuse_element(element, "has no \"=\"");
    const auto setting =
        std::ranges::find(pg::settings, element.substr(0, equals), &pg::Setting::name);
    if (setting == pg::settings.end()) refuse_element(element, "is not of a setting");
    const auto number = static_cast<std::size_t>(setting - pg::settings.begin());
    if (std::exchange(passed[number], true))
        refuse_element(element, "is of a setting that the call has passed before");
    char* text = report::c_string(element.substr(equals + 1));
    pg::change(row, number, {pg::value_of_text(setting->type, text), false});
}

// A call of create_scope() may pass the default, which looks like no argument.
void read_settings(FunctionCallInfo fcinfo, Purpose purpose, pg::ScopeRow& row) {
    Passed passed{};
    for (std::size_t i = 0; i < pg::named_settings; ++i) {
        const NullableDatum argument = fcinfo->args[arg_first_setting + static_cast<int>(i)];
        if (purpose == Purpose::create || !argument.isnull) pg::change(row, i, argument);
        const pg::Setting& setting = pg::settings[i];
        passed[i] = !argument.isnull &&
                    (purpose == Purpose::alter ||
                     !pg::same_value(setting.type, argument, pg::preset_value(setting)));
    }
    ArrayType* list = pg::array_arg(fcinfo, arg_settings);
    if (list == nullptr && purpose == Purpose::create) report::null_argument("settings");
    if (list == nullptr) return;
    for (const std::string_view element : pg::texts_of(list)) read_element(element, passed, row);
}

// Looks the scope up again under the lock: during the wait for it, the scope may have been dropped
// or given to another owner.
std::int32_t locked_scope(FunctionCallInfo fcinfo, const char* function) {
    const auto name = pg::text_arg(fcinfo, arg_name);
    (void)pg::usable_scope(name, function);
    pg::lock_changes(pg::Table::scope);
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

// What another attempt should continue is not dropped by mistake.
void check_droppable(std::int32_t scope, std::string_view name) {
    const auto operation = pg::resumable_operation(scope);
    if (!operation) return;
    ereport(ERROR,
            (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
             errmsg("scope \"%s\" has an unfinished operation with a recovery point",
                    report::c_string(name)),
             errdetail("An attempt of operation \"%s\" has reached the recovery point \"%s\".",
                       operation->key, operation->recovery_point),
             errhint("Finish the operations that idem.take() returns, and those under a lease. If "
                     "none must be continued, pass \"force\" => true.")));
}

// The tenant is a part of a key's digest, and the table is where it is looked for. Where there are
// no keys, others are kept from claiming until this transaction ends; they then ask again.
void check_identity(const pg::ScopeRow& before, const pg::ScopeRow& after) {
    using namespace pg::scope_row;
    const auto differs = [&](int column, Oid type) {
        return !pg::same_value(type, before.at(column), after.at(column));
    };
    const bool other_tenants = differs(column_of("tenant_from"), TEXTOID);
    const bool other_tables = differs(column_of("records"), BOOLOID);
    if (!other_tenants && !other_tables) return;
    const pg::Keys keys = pg::keys_of(pg::id_of(before));
    if (!keys.any()) return;
    const char* expiry = keys.records == 0 ? ""
                                           : psprintf(" The last record expires at %s.",
                                                      timestamptz_to_str(keys.until));
    ereport(
        ERROR,
        (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
         errmsg("cannot change \"%s\" of scope \"%s\" while it has live keys",
                other_tables ? "records" : "tenant_from", report::c_string(pg::name_of(before))),
         errdetail("Retries would not find their records, and would run the operations again. "
                   "Unexpired records: %lld; watermarks, which do not expire: %lld.%s",
                   static_cast<long long>(keys.records), static_cast<long long>(keys.watermarks),
                   expiry),
         errhint("Create another scope for new keys, or change this one when its records have "
                 "expired. To give its keys up, pass \"force\" => true.")));
}

// What a key's age is compared with does not grow while keys are refused: their records may have
// expired, so they would run again. A longer ttl leaves it as it was.
void keep_stale_keys_refused(const pg::ScopeRow& before, pg::ScopeRow& after) {
    using namespace pg::scope_row;
    const auto rejects = [](const pg::ScopeRow& row) {
        return DatumGetBool(row.at(column_of("reject_stale_keys")).value);
    };
    const auto remembered = [](const pg::ScopeRow& row) {
        const NullableDatum least = row.at(column_of("min_ttl"));
        const Datum value = (least.isnull ? row.at(column_of("ttl")) : least).value;
        return pg::duration("min_ttl", *DatumGetIntervalP(value));
    };
    if (!rejects(before) || !rejects(after) || remembered(after) <= remembered(before)) return;
    if (before.at(column_of("min_ttl")).isnull && after.at(column_of("min_ttl")).isnull) {
        after.set(column_of("min_ttl"), before.at(column_of("ttl")));
        return;
    }
    ereport(
        ERROR,
        (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
         errmsg("cannot raise \"min_ttl\" of scope \"%s\" while it rejects stale keys",
                report::c_string(pg::name_of(before))),
         errdetail("Keys that it has refused would be accepted. Their records may have expired, "
                   "so their operations would be executed again."),
         errhint("Raise \"ttl\" alone. When every record has been kept for the new "
                 "\"min_ttl\", pass \"force\" => true.")));
}

}  // namespace

// The type of the column "owner". What looks like a number is no role: one whose name does is
// quoted.
IDEM_FUNCTION(idem_role_in) {
    const char* name = PG_GETARG_CSTRING(0);
    if (strspn(name, "0123456789") == strlen(name)) PG_RETURN_OID(InvalidOid);
    return DirectFunctionCall1(regrolein, CStringGetDatum(name));
}

IDEM_FUNCTION(idem_role_out) {
    const char* name = pg::role_name(PG_GETARG_OID(0));
    PG_RETURN_CSTRING(pstrdup(name == nullptr ? "-" : name));
}

IDEM_FUNCTION(idem_create_scope) {
    require_writable("create_scope");
    const auto name = pg::text_arg(fcinfo, arg_name);
    if (!name) report::missing_argument("name");
    pg::ScopeRow row = pg::new_scope(*name);
    read_settings(fcinfo, Purpose::create, row);
    pg::change_owner(row, PG_ARGISNULL(arg_owner) ? GetUserId() : PG_GETARG_OID(arg_owner));
    const bool if_not_exists = switch_arg(fcinfo, arg_last, "if_not_exists");
    if (pg::insert_scope(row, if_not_exists)) pg::create_secrets();
    PG_RETURN_VOID();
}

IDEM_FUNCTION(idem_alter_scope) {
    require_writable("alter_scope");
    const bool force = switch_arg(fcinfo, arg_last, "force");
    pg::StoredScope scope = pg::stored_scope(locked_scope(fcinfo, "alter_scope"));
    const pg::ScopeRow before = scope.row;
    read_settings(fcinfo, Purpose::alter, scope.row);
    if (!PG_ARGISNULL(arg_owner)) pg::change_owner(scope.row, PG_GETARG_OID(arg_owner));
    refuse_open_claim(pg::id_of(before));
    if (!force) {
        check_identity(before, scope.row);
        keep_stale_keys_refused(before, scope.row);
    }
    pg::update_scope(scope, before);
    PG_RETURN_VOID();
}

// Reads only the scope, so it also works on a standby.
IDEM_FUNCTION(idem_scope_ddl) {
    require_leader("scope_ddl");
    const pg::Scope& scope = pg::usable_scope(pg::text_arg(fcinfo, 0), "scope_ddl");
    PG_RETURN_TEXT_P(cstring_to_text(pg::scope_definition(scope.id)));
}

// The scope's records expire at once, because no scope has their id any more.
IDEM_FUNCTION(idem_drop_scope) {
    require_writable("drop_scope");
    const bool force = switch_arg(fcinfo, 1, "force");
    const std::int32_t scope = locked_scope(fcinfo, "drop_scope");
    refuse_open_claim(scope);
    if (!force) check_droppable(scope, *pg::text_arg(fcinfo, arg_name));
    pg::remove_scope(scope);
    pg::note_dropped_scope(scope);
    PG_RETURN_VOID();
}

IDEM_FUNCTION(idem_rotate_secret) {
    require_writable("rotate_secret");
    PG_RETURN_INT32(pg::rotate_fingerprint_secret());
}

// The trigger of idem.scope and idem.secret, which every backend caches. The functions above write
// without the executor and announce their changes themselves; the trigger announces those of a
// superuser's statement, a restored dump or a subscription. It is a row trigger that is always
// enabled, because an apply worker fires no other. TRUNCATE needs no trigger: the server announces
// every change of a table's files.
IDEM_FUNCTION(idem_announce_change) {
    if (!CALLED_AS_TRIGGER(fcinfo))
        ereport(ERROR,
                (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
                 errmsg("idem_internal.announce_change() was not called as a trigger"),
                 errdetail("It is the trigger function of tables idem.scope and idem.secret."),
                 errhint("Change scopes with idem.alter_scope(), which announces the change.")));
    CacheInvalidateRelcache(reinterpret_cast<const TriggerData*>(fcinfo->context)->tg_relation);
    return Datum{0};  // the result of an AFTER trigger is ignored
}

}  // namespace idem::api
