// The identity of a database: idem.import_identity(). idem.export_identity() is SQL.
//
// Digests of keys depend on the ids of scopes; lock ids, leased tokens and child keys on the seed;
// fingerprints on the fingerprint secrets. Servers that agree on all of these can take over each
// other's records. An identity is a value of the type idem_internal.identity, which travels as
// jsonb.
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
#include "pg/scope_ids.hpp"
#include "pg/scope_table.hpp"
#include "pg/secret.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;

constexpr int identity_version = 1;

struct ImportedScope {
    std::int32_t id;
    const char* name;
    pg::ScopeRow row;
};

struct Identity {
    std::span<const ImportedScope> scopes;
    std::span<const std::int32_t> dropped;
    std::int32_t last_scope_id;
    std::span<const pg::StoredSecret> secrets;  // the seed comes first
};
static_assert(std::is_trivially_destructible_v<Identity>);

// ---- Reading ------------------------------------------------------------------------------------

[[noreturn]] void refuse_identity(const char* detail) {
    report::invalid_argument("identity", detail,
                             "Pass the result of idem.export_identity() unchanged.");
}

Datum member(HeapTupleHeader identity, const char* name) {
    bool null;
    const Datum value = GetAttributeByName(identity, name, &null);
    if (null) refuse_identity(psprintf("Member \"%s\" is missing.", name));
    return value;
}

template <class T>
std::span<const T> read_array(HeapTupleHeader identity, const char* name, T (*read)(Datum)) {
    ArrayType* array = DatumGetArrayTypeP(member(identity, name));
    int16 length;
    bool by_value;
    char alignment;
    get_typlenbyvalalign(ARR_ELEMTYPE(array), &length, &by_value, &alignment);
    Datum* elements;
    bool* nulls;
    int count;
    deconstruct_array(array, ARR_ELEMTYPE(array), length, by_value, alignment, &elements, &nulls,
                      &count);
    const auto size = static_cast<std::size_t>(count);
    auto* values = static_cast<T*>(palloc0((size + 1) * sizeof(T)));
    for (std::size_t i = 0; i < size; ++i) {
        if (nulls[i]) refuse_identity(psprintf("An element of \"%s\" is null.", name));
        values[i] = read(elements[i]);
    }
    return {values, size};
}

ImportedScope read_scope(Datum value) {
    using namespace pg::scope_row;
    const pg::ScopeRow row = pg::checked_row(DatumGetHeapTupleHeader(value));
    const text* name = DatumGetTextPP(row.values()[column_name]);
    check_name(pg::view_of(name));
    check_owner(DatumGetObjectId(row.values()[column_owner]));
    return {DatumGetInt32(row.values()[column_id]), report::c_string(pg::view_of(name)), row};
}

Identity read_identity(HeapTupleHeader identity) {
    const Identity read{
        .scopes = read_array<ImportedScope>(identity, "scopes", read_scope),
        .dropped = read_array<std::int32_t>(identity, "dropped_scopes",
                                            [](Datum id) { return DatumGetInt32(id); }),
        .last_scope_id = DatumGetInt32(member(identity, "last_scope_id")),
        .secrets = read_array<pg::StoredSecret>(identity, "secrets", pg::read_secret),
    };
    if (read.secrets.size() < 2 || read.secrets.front().id != pg::seed_id)
        refuse_identity("It lacks the seed, or has no fingerprint secret.");
    return read;
}

// ---- Import -------------------------------------------------------------------------------------

// Only a database without keys may get another identity, or other than new scopes and secrets. The
// record of an open claim would get the digest and the fingerprint of the identity before.
void refuse_keys(const char* what) {
    if (const pg::Claim* claim = pg::newest_open_claim())
        ereport(ERROR,
                (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                 errmsg("idem.import_identity() cannot be called while a claim is open"),
                 errdetail("This transaction has claimed key \"%s\" in scope \"%s\".",
                           report::c_string(claim->key), report::c_string(claim->scope_name)),
                 errhint("Call it in a transaction of its own.")));
    const pg::Keys keys = pg::keys_of(std::nullopt);
    if (!keys.any()) return;
    ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                    errmsg("the identity does not fit the keys in this database"),
                    errdetail("%s Keys of this database would not be found again. It has %lld "
                              "unexpired records and %lld watermarks.",
                              what, static_cast<long long>(keys.records),
                              static_cast<long long>(keys.watermarks)),
                    errhint("Import an identity before the database is used. To give all keys up, "
                            "remove them with idem.forget() and idem.reset_stream(), or those of a "
                            "dropped scope with idem.purge().")));
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
        if (std::ranges::find(identity.secrets, each.id, &pg::StoredSecret::id) ==
            identity.secrets.end())
            ereport(ERROR,
                    (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                     errmsg("the identity does not have fingerprint secret %d", each.id),
                     errdetail("This database has the same seed, and a fingerprint secret that was "
                               "added after the identity was exported, or on this server only."),
                     errhint("Run idem.rotate_secret() on one server only, export the identity "
                             "there, and import it on the others.")));
    for (const pg::StoredSecret& each : identity.secrets) import_secret(each, here);
}

// The id must be free, or be that of a scope that is going to get another id. there: NULL if the
// scope was dropped there.
void check_id_free(const Identity& identity, std::int32_t id, const char* there) {
    const pg::Scope* here = pg::find_scope_by_id(id);
    if (here == nullptr || (there != nullptr && strcmp(here->name, there) == 0)) return;
    for (const ImportedScope& moved : identity.scopes)
        if (strcmp(moved.name, here->name) == 0 && moved.id != id) return;
    ereport(
        ERROR,
        (errcode(ERRCODE_DUPLICATE_OBJECT),
         errmsg("scope id %d belongs to scope \"%s\" in this database", id, here->name),
         there == nullptr ? errdetail("In the identity, the scope with this id was dropped.")
                          : errdetail("In the identity, it belongs to scope \"%s\".", there),
         errhint("Drop scope \"%s\" here with idem.drop_scope(), and import the identity again.",
                 here->name)));
}

// A scope of the same name gives way if its id differs. So does the note that the id was dropped.
void make_room(const ImportedScope& scope) {
    if (pg::is_dropped_scope(scope.id)) {
        refuse_keys(
            psprintf("Scope id %d was dropped in this database and would belong to a scope again.",
                     scope.id));
        pg::unnote_dropped_scope(scope.id);
    }
    const pg::Scope* found = pg::find_scope(scope.name);
    if (found == nullptr) return;
    const std::int32_t id = found->id;
    pg::require_same_rules(id, scope.row);
    if (id == scope.id) return;
    refuse_keys(psprintf("Scope \"%s\" would get id %d in place of %d.", scope.name, scope.id, id));
    pg::remove_scope(id);
}

void import_scopes(const Identity& identity) {
    for (const ImportedScope& scope : identity.scopes)
        check_id_free(identity, scope.id, scope.name);
    for (const std::int32_t id : identity.dropped) check_id_free(identity, id, nullptr);
    for (const ImportedScope& scope : identity.scopes) make_room(scope);
    for (const ImportedScope& scope : identity.scopes)
        if (pg::find_scope(scope.name) == nullptr) pg::place_scope(scope.row);
    for (const std::int32_t id : identity.dropped) pg::note_dropped_scope(id);
    if (identity.last_scope_id > 0) pg::give_scope_ids(identity.last_scope_id);
}

}  // namespace
}  // namespace idem::api

// is_whole: the jsonb has the members of the type, no other ones, and each as its type shows it.
IDEM_FUNCTION(idem_import_identity) {
    using namespace idem;
    api::require_writable("idem.import_identity()");
    const auto is_whole = pg::bool_arg(fcinfo, 1);
    if (PG_ARGISNULL(0) || !is_whole) pg::report::missing_argument("identity");
    HeapTupleHeader given = PG_GETARG_HEAPTUPLEHEADER(0);
    const int version = DatumGetInt32(api::member(given, "version"));
    if (version != api::identity_version)
        pg::report::invalid_argument(
            "identity",
            psprintf("The identity has version %d. This release reads version %d.", version,
                     api::identity_version),
            "Install on this server the release of idem that exported the identity.");
    if (!*is_whole)
        api::refuse_identity(
            "A member is missing, unknown, or not written as that function writes it.");
    const api::Identity identity = api::read_identity(given);
    pg::lock_scopes();
    api::import_scopes(identity);
    api::import_secrets(identity);
    PG_RETURN_VOID();
}
