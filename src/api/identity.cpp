// The identity of a database: idem.export_identity() and idem.import_identity().
//
// Digests of keys depend on the ids of scopes; lock ids, leased tokens and child keys on the seed;
// fingerprints on the fingerprint secrets. Servers that agree on all of these can take over each
// other's records. The identity is a jsonb object with these members:
//
//   version              1
//   scopes               objects with the columns of idem.scope
//   dropped_scopes       the ids of dropped scopes
//   last_scope_id        no scope has had a higher id
//   seed                 64 hexadecimal digits
//   fingerprint_secrets  objects with the members id and secret, which is like the seed
//
// An import is for a database without unexpired records and watermarks, or for one that has the
// same identity already: then it adds new scopes and secrets. Everything else raises 55000, because
// it would make records unreachable: they are found by their digests, and compared under the
// secrets of their fingerprints. It takes the locks of create_scope() and rotate_secret(), in their
// order. Where it has to count records, it keeps all claims from writing until its transaction
// ends.
#include "api/arguments.hpp"
#include "api/scope.hpp"
#include "pg/boundary.hpp"
#include "pg/open_claims.hpp"
#include "pg/report.hpp"
#include "pg/scope.hpp"
#include "pg/scope_ids.hpp"
#include "pg/secret.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;

constexpr int identity_version = 1;
constexpr std::array member_names = std::to_array<const char*>(
    {"version", "scopes", "dropped_scopes", "last_scope_id", "seed", "fingerprint_secrets"});

struct Identity {
    std::span<const ImportedScope> scopes;
    std::span<const std::int32_t> dropped;
    std::int32_t last_scope_id;
    std::span<const pg::StoredSecret> secrets;  // the seed comes first

    const ImportedScope* scope_named(std::string_view name) const {
        const auto found = std::ranges::find(scopes, name, &ImportedScope::name);
        return found == scopes.end() ? nullptr : &*found;
    }
    const pg::StoredSecret* secret(std::int32_t id) const {
        const auto found = std::ranges::find(secrets, id, &pg::StoredSecret::id);
        return found == secrets.end() ? nullptr : &*found;
    }
};

void require_superuser(const char* function) {
    if (!superuser())
        report::superuser_only(function, "An identity contains the secrets of the database.");
}

// ---- Export -------------------------------------------------------------------------------------

void append_hex(StringInfo json, const core::Secret& secret) {
    std::array<char, 2 * sizeof(core::Secret)> digits;
    (void)core::put_hex(secret, digits.begin());
    appendStringInfoChar(json, '"');
    appendBinaryStringInfo(json, digits.data(), static_cast<int>(digits.size()));
    appendStringInfoChar(json, '"');
}

void append_dropped(StringInfo json) {
    List* ids = pg::dropped_scopes();
    list_sort(ids, list_int_cmp);
    for (int i = 0; i < list_length(ids); ++i)
        appendStringInfo(json, "%s%d", i == 0 ? "" : ",", list_nth_int(ids, i));
}

void append_secrets(StringInfo json) {
    const std::span<const pg::StoredSecret> secrets = pg::stored_secrets();
    if (secrets.empty() && pg::last_scope_id() == 0) report::no_identity();
    (void)pg::secrets();  // raises when one is missing
    const char* separator = "";
    for (const pg::StoredSecret& each : secrets) {
        if (each.id == pg::seed_id) {
            appendStringInfoString(json, ",\"seed\":");
            append_hex(json, each.secret);
            appendStringInfoString(json, ",\"fingerprint_secrets\":[");
            continue;
        }
        appendStringInfo(json, "%s{\"id\":%d,\"secret\":", separator, each.id);
        append_hex(json, each.secret);
        appendStringInfoChar(json, '}');
        separator = ",";
    }
    appendStringInfoChar(json, ']');
}

// ---- Reading ------------------------------------------------------------------------------------

JsonbValue member(JsonbContainer* object, const char* name) {
    JsonbValue value;
    if (getKeyJsonValueFromContainer(object, name, static_cast<int>(strlen(name)), &value) ==
        nullptr)
        report::malformed_identity(psprintf("Member \"%s\" is missing.", name));
    return value;
}

bool is_number(const JsonbValue& value, std::int32_t number) {
    return DatumGetBool(DirectFunctionCall2(numeric_eq, NumericGetDatum(value.val.numeric),
                                            NumericGetDatum(int64_to_numeric(number))));
}

// A fraction would be rounded.
std::int32_t read_number(const JsonbValue& value, const char* name, std::int32_t least) {
    bool invalid = value.type != jbvNumeric;
    const std::int32_t number = invalid ? 0 : numeric_int4_opt_error(value.val.numeric, &invalid);
    if (invalid || number < least || !is_number(value, number))
        report::malformed_identity(psprintf("Member \"%s\" is not a whole number from %d to %d.",
                                            name, least, PG_INT32_MAX));
    return number;
}

JsonbContainer* array_member(JsonbContainer* object, const char* name) {
    const JsonbValue value = member(object, name);
    if (value.type != jbvBinary || !JsonContainerIsArray(value.val.binary.data))
        report::malformed_identity(psprintf("Member \"%s\" is not an array.", name));
    return value.val.binary.data;
}

Jsonb* object_element(JsonbContainer* array, std::uint32_t i, const char* name) {
    JsonbValue* value = getIthJsonbValueFromContainer(array, i);
    if (value->type != jbvBinary || !JsonContainerIsObject(value->val.binary.data))
        report::malformed_identity(psprintf("An element of \"%s\" is not an object.", name));
    return JsonbValueToJsonb(value);
}

std::optional<unsigned> hex_digit(char c) {
    constexpr std::string_view digits = "0123456789abcdef";
    const std::size_t at = digits.find(c);
    return at == std::string_view::npos ? std::nullopt : std::optional(static_cast<unsigned>(at));
}

core::Secret read_secret(const JsonbValue& value, const char* name) {
    core::Secret secret{};
    bool valid = value.type == jbvString &&
                 static_cast<std::size_t>(value.val.string.len) == 2 * secret.size();
    for (std::size_t i = 0; valid && i < secret.size(); ++i) {
        const auto high = hex_digit(value.val.string.val[2 * i]);
        const auto low = hex_digit(value.val.string.val[2 * i + 1]);
        valid = high && low;
        if (valid) secret[i] = static_cast<std::byte>(*high * 16 + *low);
    }
    if (!valid)
        report::malformed_identity(psprintf(
            "Member \"%s\" does not consist of %zu hexadecimal digits.", name, 2 * secret.size()));
    return secret;
}

template <class T>
std::span<T> new_span(std::size_t size) {
    return {static_cast<T*>(palloc0((size + 1) * sizeof(T))), size};
}

std::span<const ImportedScope> read_scopes(JsonbContainer* root) {
    JsonbContainer* array = array_member(root, "scopes");
    const auto scopes = new_span<ImportedScope>(JsonContainerSize(array));
    for (std::uint32_t i = 0; i < scopes.size(); ++i)
        scopes[i] = checked_scope(pg::read_scope_object(object_element(array, i, "scopes")));
    return scopes;
}

std::span<const std::int32_t> read_dropped(JsonbContainer* root) {
    JsonbContainer* array = array_member(root, "dropped_scopes");
    const auto ids = new_span<std::int32_t>(JsonContainerSize(array));
    for (std::uint32_t i = 0; i < ids.size(); ++i)
        ids[i] = read_number(*getIthJsonbValueFromContainer(array, i), "dropped_scopes", 1);
    return ids;
}

std::span<const pg::StoredSecret> read_secrets(JsonbContainer* root) {
    JsonbContainer* array = array_member(root, "fingerprint_secrets");
    if (JsonContainerSize(array) == 0)
        report::malformed_identity("Member \"fingerprint_secrets\" is empty.");
    const auto secrets = new_span<pg::StoredSecret>(JsonContainerSize(array) + 1);
    secrets[0] = {pg::seed_id, read_secret(member(root, "seed"), "seed")};
    for (std::uint32_t i = 0; i < JsonContainerSize(array); ++i) {
        Jsonb* object = object_element(array, i, "fingerprint_secrets");
        secrets[i + 1] = {read_number(member(&object->root, "id"), "id", 1),
                          read_secret(member(&object->root, "secret"), "secret")};
    }
    return secrets;
}

void check_version(JsonbContainer* root) {
    const int version = read_number(member(root, "version"), "version", 1);
    if (version == identity_version) return;
    report::invalid_argument(
        "identity",
        psprintf("The identity has version %d. This release reads version %d.", version,
                 identity_version),
        "Install on this server the release of idem that exported the identity.");
}

void check_members(JsonbContainer* root) {
    for (const char* name : member_names) (void)member(root, name);
    if (JsonContainerSize(root) != member_names.size())
        report::malformed_identity("There is a member that this release does not know.");
}

// No id and no name occurs twice, and no id is above the last.
void check_scope_ids(const Identity& identity) {
    const auto check_id = [&](std::int32_t id) {
        const auto count = std::ranges::count(identity.scopes, id, &ImportedScope::id) +
                           std::ranges::count(identity.dropped, id);
        if (count != 1) report::malformed_identity(psprintf("Scope id %d occurs twice.", id));
        if (id < 1 || id > identity.last_scope_id)
            report::malformed_identity(psprintf("Scope id %d is not from 1 to the last id, %d.", id,
                                                identity.last_scope_id));
    };
    for (const ImportedScope& scope : identity.scopes) {
        check_id(scope.id);
        if (std::ranges::count(identity.scopes, scope.name, &ImportedScope::name) != 1)
            report::malformed_identity(psprintf("Scope \"%s\" occurs twice.",
                                                pnstrdup(scope.name.data(), scope.name.size())));
    }
    for (const std::int32_t id : identity.dropped) check_id(id);
}

void check_secret_ids(const Identity& identity) {
    for (const pg::StoredSecret& each : identity.secrets)
        if (std::ranges::count(identity.secrets, each.id, &pg::StoredSecret::id) != 1)
            report::malformed_identity(psprintf("Fingerprint secret %d occurs twice.", each.id));
}

Identity read_identity(Jsonb* identity) {
    if (!JB_ROOT_IS_OBJECT(identity)) report::malformed_identity("The value is not an object.");
    JsonbContainer* root = &identity->root;
    check_version(root);
    check_members(root);
    const Identity read{
        .scopes = read_scopes(root),
        .dropped = read_dropped(root),
        .last_scope_id = read_number(member(root, "last_scope_id"), "last_scope_id", 0),
        .secrets = read_secrets(root),
    };
    check_scope_ids(read);
    check_secret_ids(read);
    return read;
}

// ---- Import -------------------------------------------------------------------------------------

// Its record would get the digest and the fingerprint of the identity before.
void refuse_open_claim() {
    const pg::Claim* claim = pg::newest_open_claim();
    if (claim != nullptr)
        report::claim_is_open("idem.import_identity()", claim->scope_name, claim->key);
}

// Only a database without keys may get another identity, or other than new scopes and secrets.
void refuse_keys(const char* what) {
    refuse_open_claim();
    const pg::Keys keys = pg::keys_of(std::nullopt);
    if (keys.any()) report::identity_orphans(what, keys.records, keys.watermarks);
}

// The seed is here another: every record would be lost. Without any secret, as on a subscriber, no
// record was made here, so there is nothing to lose.
void replace_secrets(const Identity& identity, bool had_secrets) {
    if (had_secrets) refuse_keys("The seed of this database would change.");
    pg::delete_secrets();
    for (const pg::StoredSecret& each : identity.secrets) pg::put_secret(each);
}

void import_secret(const pg::StoredSecret& given, std::span<const pg::StoredSecret> here) {
    const auto stored = std::ranges::find(here, given.id, &pg::StoredSecret::id);
    if (stored != here.end() && stored->secret == given.secret) return;
    if (stored != here.end())
        refuse_keys(psprintf("Fingerprint secret %d of this database would change.", given.id));
    pg::put_secret(given);
}

void import_secrets(const Identity& identity) {
    pg::lock_secrets();
    const std::span<const pg::StoredSecret> here = pg::stored_secrets();
    const bool same_seed = !here.empty() && here.front().id == pg::seed_id &&
                           here.front().secret == identity.secrets.front().secret;
    if (!same_seed) return replace_secrets(identity, !here.empty());
    for (const pg::StoredSecret& each : here)
        if (identity.secret(each.id) == nullptr) report::identity_lacks_secret(each.id);
    for (const pg::StoredSecret& each : identity.secrets) import_secret(each, here);
}

// The id must be free, or be that of a scope that is going to get another id.
void check_id_free(const Identity& identity, std::int32_t id, const char* there) {
    const pg::Scope* here = pg::find_scope_by_id(id);
    if (here == nullptr || (there != nullptr && strcmp(here->name, there) == 0)) return;
    const ImportedScope* moved = identity.scope_named(here->name);
    if (moved == nullptr || moved->id == id)
        report::identity_id_taken(id, pstrdup(here->name), there);
}

// A scope of the same name gives way if its id differs. So does the note that the id was dropped.
void make_room(const ImportedScope& scope) {
    if (pg::is_dropped_scope(scope.id)) {
        refuse_keys(
            psprintf("Scope id %d was dropped in this database and would belong to a "
                     "scope again.",
                     scope.id));
        pg::unnote_dropped_scope(scope.id);
    }
    const pg::Scope* found = pg::find_scope(scope.name);
    if (found == nullptr) return;
    const std::int32_t id = found->id;
    pg::require_same_rules(id, scope.rules);
    if (id == scope.id) return;
    refuse_keys(
        psprintf("Scope \"%s\" would get id %d in place of %d.", found->name, scope.id, id));
    pg::remove_scope(id);
}

void import_scopes(const Identity& identity) {
    for (const ImportedScope& scope : identity.scopes)
        check_id_free(identity, scope.id, pnstrdup(scope.name.data(), scope.name.size()));
    for (const std::int32_t id : identity.dropped) check_id_free(identity, id, nullptr);
    for (const ImportedScope& scope : identity.scopes) make_room(scope);
    for (const ImportedScope& scope : identity.scopes)
        if (pg::find_scope(scope.name) == nullptr)
            pg::place_scope(scope.id, scope.name, scope.rules);
    for (const std::int32_t id : identity.dropped) pg::note_dropped_scope(id);
    if (identity.last_scope_id > 0) pg::give_scope_ids(identity.last_scope_id);
}

}  // namespace
}  // namespace idem::api

// Reads only, so it also works on a standby.
IDEM_FUNCTION(idem_export_identity) {
    using namespace idem;
    api::require_leader("idem.export_identity()");
    api::require_superuser("idem.export_identity()");
    StringInfoData json;
    initStringInfo(&json);
    appendStringInfo(&json, "{\"version\":%d,\"scopes\":", api::identity_version);
    pg::append_scopes(&json);
    appendStringInfoString(&json, ",\"dropped_scopes\":[");
    api::append_dropped(&json);
    appendStringInfo(&json, "],\"last_scope_id\":%lld",
                     static_cast<long long>(pg::last_scope_id()));
    api::append_secrets(&json);
    appendStringInfoChar(&json, '}');
    return DirectFunctionCall1(jsonb_in, CStringGetDatum(json.data));
}

IDEM_FUNCTION(idem_import_identity) {
    using namespace idem;
    api::require_writable("idem.import_identity()");
    api::require_superuser("idem.import_identity()");
    Jsonb* given = pg::jsonb_arg(fcinfo, 0);
    if (given == nullptr) pg::report::missing_argument("identity");
    const api::Identity identity = api::read_identity(given);
    pg::lock_scopes();
    api::import_scopes(identity);
    api::import_secrets(identity);
    PG_RETURN_VOID();
}
