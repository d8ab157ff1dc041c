// What idem.import_identity(), which is SQL, needs of the library.
//
// Digests of keys depend on the ids of scopes; lock ids, leased tokens and child keys on the seed;
// fingerprints on the fingerprint secrets. Servers that agree on all of these can take over each
// other's records.
#include "api/arguments.hpp"
#include "pg/open_claims.hpp"
#include "pg/store/scope_ids.hpp"
#include "pg/store/scope_table.hpp"

namespace idem::api {

IDEM_FUNCTION(idem_begin_import) {
    (void)fcinfo;
    require_writable("import_identity");
    pg::lock_changes(pg::Table::scope);
    PG_RETURN_VOID();
}

// Checks a row of the other server. If the second argument is true, adds it, unless there is a
// scope of its name, which must have the same settings.
IDEM_FUNCTION(idem_import_scope) {
    if (PG_ARGISNULL(0)) report::missing_argument("scope");
    const pg::ScopeRow row = pg::checked_row(PG_GETARG_HEAPTUPLEHEADER(0));
    if (!pg::value_arg<bool>(fcinfo, 1).value_or(false)) PG_RETURN_VOID();
    if (const pg::Scope* here = pg::find_scope(pg::name_of(row)))
        pg::require_same(
            pg::stored_scope(here->id).row, row,
            "Change the existing scope first with idem.alter_scope(), or the scope in the other "
            "database, and export the identity again.");
    else
        pg::place_scope(row);
    PG_RETURN_VOID();
}

// Only a database without keys may get another identity, or other than new scopes and secrets. The
// record of an open claim would get the digest and the fingerprint of the identity before. Keeps
// all claims from writing until the transaction ends.
IDEM_FUNCTION(idem_refuse_keys) {
    const auto detail = pg::text_arg(fcinfo, 0);
    if (!detail) report::missing_argument("detail");
    if (const pg::Claim* claim = pg::newest_open_claim())
        ereport(ERROR,
                (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                 errmsg("idem.import_identity() cannot be called while a claim is open"),
                 errdetail("This transaction has claimed key \"%s\" in scope \"%s\".",
                           report::c_string(claim->key), report::c_string(claim->scope_name)),
                 errhint("Call it in a transaction of its own.")));
    const pg::Keys keys = pg::keys_of(std::nullopt);
    if (!keys.any()) PG_RETURN_VOID();
    ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                    errmsg("the identity does not fit the keys in this database"),
                    errdetail("%s Keys of this database would not be found again. It has %lld "
                              "unexpired records and %lld watermarks.",
                              report::c_string(*detail), static_cast<long long>(keys.records),
                              static_cast<long long>(keys.watermarks)),
                    errhint("Import an identity before the database is used. To give all keys up, "
                            "remove them with idem.forget() and idem.reset_stream(), or those of a "
                            "dropped scope with idem.purge().")));
}

}  // namespace idem::api
