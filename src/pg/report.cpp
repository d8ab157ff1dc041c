#include "pg/report.hpp"

#include "core/errors.hpp"
#include "pg/compat.hpp"
#include "pg/guc.hpp"

namespace idem::pg::report {

char* c_string(std::string_view view) {
    return pnstrdup(view.data(), view.size());
}

int own_error(OwnError error) {
    (void)err_generic_string(PG_DIAG_CONSTRAINT_NAME, error.name);
    (void)err_generic_string(PG_DIAG_SCHEMA_NAME, "idem");
    return errcode(errcode_of(error.sqlstate));
}

int errretry(std::int64_t retry_after) {
    const std::int64_t milliseconds = (retry_after + 999) / 1000;
    return err_generic_string(PG_DIAG_DATATYPE_NAME, psprintf(INT64_FORMAT, milliseconds));
}

int errsince(std::optional<TimestampTz> since) {
    if (!since) return 0;
    constexpr int utc = 0;
    return err_generic_string(
        PG_DIAG_COLUMN_NAME,
        JsonEncodeDateTime(nullptr, TimestampTzGetDatum(*since), TIMESTAMPTZOID, &utc));
}

// ---- Keys in flight and conflicts ---------------------------------------------------------------

namespace {

char* holder_detail(const Holder& holder) {
    if (holder.released && holder.lease_end)
        return psprintf("Its last attempt was released, and the next one is due at %s.",
                        timestamptz_to_str(*holder.lease_end));
    if (holder.lease_end && holder.since) {
        char* since = pstrdup(timestamptz_to_str(*holder.since));
        return psprintf("The key was claimed at %s, under a lease that ends at %s.", since,
                        timestamptz_to_str(*holder.lease_end));
    }
    if (holder.pid && holder.since)
        return psprintf("Process %d has held this key in a transaction since %s.", *holder.pid,
                        timestamptz_to_str(*holder.since));
    if (holder.pid) return psprintf("Process %d holds this key in a transaction.", *holder.pid);
    if (holder.prepared)
        return psprintf(
            "Prepared transaction %u holds this key until it is committed or rolled back. To find "
            "its name, run SELECT gid FROM pg_prepared_xacts WHERE transaction = '%u'.",
            *holder.prepared, *holder.prepared);
    return pstrdup("Another transaction, possibly a prepared one, holds this key.");
}

}  // namespace

int errin_progress(std::string_view key, const Holder& holder, std::int64_t retry_after) {
    (void)own_error("in_progress");
    (void)errretry(retry_after);
    (void)errsince(holder.since);
    (void)(holder.released ? errmsg("operation \"%s\" is not due yet", c_string(key))
                           : errmsg("operation \"%s\" is in progress", c_string(key)));
    return errdetail_internal("%s", holder_detail(holder));
}

// Rounded up to a tenth, as the field is to a millisecond.
static double seconds_of(std::int64_t retry_after) {
    return static_cast<double>((retry_after + 99'999) / 100'000) / 10;
}

// Clients whose driver hides the fields look for "after N.N seconds" in the hint.
void in_progress(std::string_view key, const Holder& holder, std::int64_t retry_after,
                 WaitSetBy wait) {
    const double seconds = seconds_of(retry_after);
    ereport(ERROR,
            (errin_progress(key, holder, retry_after),
             holder.released ? errhint("Retry with the same key after %.1f seconds.", seconds)
             : wait == WaitSetBy::argument
                 ? errhint("Retry with the same key after %.1f seconds, or pass a longer \"wait\".",
                           seconds)
                 : errhint("Retry after %.1f seconds, or raise the scope's \"wait\" with "
                           "idem.alter_scope().",
                           seconds)));
}

void claimed_by_this_transaction(std::string_view key, const char* hint) {
    ereport(ERROR,
            (own_error("in_progress"), errmsg("operation \"%s\" is in progress", c_string(key)),
             errdetail("The key was claimed by this transaction, and the claim is still open."),
             hint != nullptr
                 ? errhint("%s", hint)
                 : errhint("Complete the first claim before you claim the key again. \"SELECT "
                           "(idem.claim(...)).*\" calls the function once per column; write "
                           "\"SELECT * FROM idem.claim(...)\" instead.")));
}

namespace {

const char* phrase(Transition what) {
    switch (what) {
        case Transition::lapse:
            return "lease has lapsed";
        case Transition::takeover:
            return "operation was taken over";
        case Transition::exhaustion:
            return "attempts are exhausted";
        case Transition::failure:
            return "failure was stored";
        case Transition::revocation:
            return "operation was revoked";
        case Transition::removal:
            return "record was forgotten";
        case Transition::erasure:
            return "record was erased";
    }
    pg_unreachable();
}

}  // namespace

// Statement and context are left out: they may have the request or the answer in them.
void log_transition(Transition what, std::string_view scope, std::string_view tenant,
                    std::string_view key, std::int32_t attempt) {
    if (guc::log_transitions == 0) return;
    ereport(guc::log_transitions,
            (errmsg("%s in scope \"%s\"", phrase(what), c_string(scope)),
             tenant.empty()
                 ? errdetail("This is about attempt %d of key \"%s\".", attempt, c_string(key))
                 : errdetail("This is about attempt %d of key \"%s\" of tenant \"%s\".", attempt,
                             c_string(key), c_string(tenant)),
             errhidestmt(true), errhidecontext(true)));
}

void serialization_failure(const char* detail) {
    ereport(ERROR, (errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
                    errmsg("could not serialize access due to concurrent update"),
                    errdetail_internal("%s", detail), errhint("Retry the transaction.")));
}

void key_unknown_on_standby() {
    ereport(NOTICE, (errmsg("key is not known on this standby"),
                     errdetail("A standby may lag behind its primary, and does not see claims in "
                               "flight."),
                     errhint("Call idem.lookup() on the primary before you execute the "
                             "operation.")));
}

// ---- Tokens -------------------------------------------------------------------------------------

void not_claimed(const char* detail, const char* hint) {
    ereport(ERROR, (own_error("not_claimed"), errmsg("token names no open claim"),
                    errdetail_internal("%s", detail), errhint("%s", hint)));
}

// ---- New keys -----------------------------------------------------------------------------------

void invalid_key(const char* message, const char* detail, const char* hint) {
    ereport(ERROR, (own_error("invalid_key"), errmsg_internal("%s", message),
                    errdetail_internal("%s", detail), errhint("%s", hint)));
}

void digest_collision() {
    ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED), errmsg("key cannot be used"),
                    errdetail("The record of another key has the same 128-bit digest."),
                    errhint("Use another key.")));
}

// ---- Scopes -------------------------------------------------------------------------------------

void no_scope() {
    ereport(ERROR, (own_error("unknown_scope"), errmsg("scope must not be null"),
                    errdetail("The name of the scope is null."),
                    errhint("Pass the name of a scope. idem.scopes lists the scopes that you may "
                            "use.")));
}

void unknown_scope(std::string_view name, const char* nearest, const char* detail, bool creatable) {
    ereport(ERROR,
            (own_error("unknown_scope"), errmsg("scope \"%s\" does not exist", c_string(name)),
             detail != nullptr ? errdetail_internal("%s", detail)
                               : errdetail("No scope in this database has that name."),
             nearest != nullptr ? errhint("Perhaps you meant the scope \"%s\".", nearest)
             : creatable ? errhint("Create the scope first with idem.create_scope(), or use one of "
                                   "the scopes that idem.scopes lists.")
                         : errhint("Check the name. idem.scopes lists the scopes that you may "
                                   "use.")));
}

namespace {

// Where the owner is a superuser no role should be granted membership: the scope is given away.
char* membership_hint(const char* scope, Oid owner, const char* owner_name) {
    if (owner_name == nullptr || superuser_arg(owner))
        return psprintf(
            "Ask a superuser to give the scope to a role of its users, for example with SELECT "
            "idem.alter_scope(%s, owner => %s).",
            quote_literal_cstr(scope),
            quote_literal_cstr(quote_identifier(GetUserNameFromId(GetUserId(), false))));
    const char* role = pstrdup(quote_identifier(owner_name));
    if (compat::may_become(GetUserId(), owner)) return psprintf("Run SET ROLE %s first.", role);
    return psprintf("Ask an administrator of the role to run GRANT %s TO %s.", role,
                    quote_identifier(GetUserNameFromId(GetUserId(), false)));
}

}  // namespace

// Scopes and their owners are no secret, as tables and theirs are none.
void not_scope_member(std::string_view scope, Oid owner, const char* function) {
    const char* name = c_string(scope);
    const char* owner_name = GetUserNameFromId(owner, true);
    ereport(ERROR,
            (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
             errmsg("permission denied for scope \"%s\"", name),
             owner_name != nullptr
                 ? errdetail("The scope belongs to role \"%s\", whose privileges idem.%s() needs.",
                             owner_name, function)
                 : errdetail("The role that owned the scope was dropped."),
             errhint("%s", membership_hint(name, owner, owner_name))));
}

void scope_exists(std::string_view name) {
    ereport(ERROR, (errcode(ERRCODE_DUPLICATE_OBJECT),
                    errmsg("scope \"%s\" already exists", c_string(name)),
                    errdetail("Scope names are unique in a database."),
                    errhint("Change the existing scope with idem.alter_scope(), or choose another "
                            "name.")));
}

void scope_differs(std::string_view name, const char* differences) {
    ereport(ERROR, (errcode(ERRCODE_DUPLICATE_OBJECT),
                    errmsg("scope \"%s\" already exists with other settings", c_string(name)),
                    errdetail_internal("%s", differences),
                    errhint("Pass the settings of the existing scope, which idem.scope_ddl() "
                            "shows, or change them first with idem.alter_scope().")));
}

void scope_ids_used_up() {
    ereport(ERROR,
            (errcode(ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED), errmsg("scope ids are used up"),
             errdetail("The id of a new scope must be greater than every id in idem.scope, "
                       "idem.dropped_scope, idem.record and idem.watermark, greater than the last "
                       "value of sequence idem.scope_id, and at most %d.",
                       PG_INT32_MAX),
             errhint("Look for rows with an id that no scope has had, and delete them. If the "
                     "sequence was set too high, set it back with ALTER SEQUENCE.")));
}

void superuser_only(const char* function, const char* detail) {
    ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
                    errmsg("must be superuser to execute %s", function), errdetail("%s", detail),
                    errhint("Ask a superuser to execute it.")));
}

void malformed_identity(const char* detail) {
    invalid_argument("identity", detail, "Pass the result of idem.export_identity() unchanged.");
}

void identity_orphans(const char* what, std::int64_t records, std::int64_t watermarks) {
    ereport(ERROR,
            (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
             errmsg("the identity does not fit the keys in this database"),
             errdetail("%s Keys of this database would not be found again. It has %lld unexpired "
                       "records and %lld watermarks.",
                       what, static_cast<long long>(records), static_cast<long long>(watermarks)),
             errhint("Import an identity before the database is used. To give all keys up, "
                     "remove them with idem.forget() and idem.reset_stream(), or those of a "
                     "dropped scope with idem.purge().")));
}

void no_identity() {
    ereport(
        ERROR,
        (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE), errmsg("this database has no identity"),
         errdetail("The secrets are created with the first scope, and there is no scope."),
         errhint("Create a scope with idem.create_scope().")));
}

void claim_is_open(const char* call, std::string_view scope, std::string_view key) {
    ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                    errmsg("%s cannot be called while a claim is open", call),
                    errdetail("This transaction has claimed key \"%s\" in scope \"%s\".",
                              c_string(key), c_string(scope)),
                    errhint("Call it in a transaction of its own.")));
}

void identity_lacks_secret(std::int32_t id) {
    ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                    errmsg("the identity does not have fingerprint secret %d", id),
                    errdetail("This database has the same seed, and a fingerprint secret that was "
                              "added after the identity was exported, or on this server only."),
                    errhint("Run idem.rotate_secret() on one server only, export the identity "
                            "there, and import it on the others.")));
}

void identity_id_taken(std::int32_t id, const char* here, const char* there) {
    ereport(ERROR,
            (errcode(ERRCODE_DUPLICATE_OBJECT),
             errmsg("scope id %d belongs to scope \"%s\" in this database", id, here),
             there == nullptr ? errdetail("In the identity, the scope with this id was dropped.")
                              : errdetail("In the identity, it belongs to scope \"%s\".", there),
             errhint("Drop scope \"%s\" here with idem.drop_scope(), and import the "
                     "identity again.",
                     here)));
}

void imported_scope_differs(std::string_view name, const char* differences) {
    ereport(ERROR, (errcode(ERRCODE_DUPLICATE_OBJECT),
                    errmsg("scope \"%s\" already exists with other settings", c_string(name)),
                    errdetail_internal("%s", differences),
                    errhint("Change the existing scope first with idem.alter_scope(), or the scope "
                            "in the other database, and export the identity again.")));
}

void imported_owner_missing(std::string_view role) {
    ereport(ERROR,
            (errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("role %s does not exist", c_string(role)),
             errdetail("In the identity, it owns a scope."),
             errhint("Create the role with CREATE ROLE. If it was dropped, give the scope "
                     "another owner with idem.alter_scope() in the other database, and "
                     "export the identity again.")));
}

// ---- Limits -------------------------------------------------------------------------------------

void too_many_claims_per_minute(const char* scope, std::int32_t limit, std::int64_t retry_after) {
    ereport(ERROR, (own_error("limit_exceeded"), errretry(retry_after),
                    errmsg("too many new claims in scope \"%s\"", scope),
                    errdetail("The scope allows %d new claims per minute per tenant.", limit),
                    errhint("Retry with the same key after %.1f seconds. Retries of finished "
                            "operations are still answered.",
                            seconds_of(retry_after))));
}

void too_large(const char* what, Size size, const char* scope, std::int32_t limit) {
    ereport(ERROR,
            (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED), errmsg("%s is too large", what),
             errdetail("The key's record would hold %zu bytes; \"max_answer_size\" of scope \"%s\" "
                       "allows %d bytes.",
                       size, scope, limit),
             errhint("Store large values in a table of your own, and pass a reference to them; or "
                     "raise the limit with idem.alter_scope().")));
}

// ---- Triggers -----------------------------------------------------------------------------------

void announce_change_called_directly() {
    ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
                    errmsg("idem_internal.announce_change() was not called as a trigger"),
                    errdetail("It is the trigger function of tables idem.scope and idem.secret."),
                    errhint("Change scopes with idem.alter_scope(), which announces the change.")));
}

// ---- Arguments ----------------------------------------------------------------------------------

void missing_argument(const char* name) {
    ereport(
        ERROR,
        (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("argument \"%s\" must not be null", name),
         errdetail("The argument has no default."), errhint("Pass a value for \"%s\".", name)));
}

void null_argument(const char* name) {
    ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
                    errmsg("argument \"%s\" must not be null", name),
                    errdetail("NULL does not stand for the argument's default."),
                    errhint("Pass a value for \"%s\", or leave it out to get its default.", name)));
}

void missing_request(const char* scope) {
    ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
                    errmsg("argument \"request\" must not be null"),
                    errdetail("Scope \"%s\" requires a request.", scope),
                    errhint("Pass the client's request as \"request\".")));
}

void invalid_argument(const char* name, const char* detail, const char* hint) {
    ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                    errmsg("invalid value for argument \"%s\"", name),
                    errdetail_internal("%s", detail), errhint("%s", hint)));
}

namespace {

const char* why_not_final(std::string_view element) {
    switch (core::listing_fault(element)) {
        case core::FailureFault::no_failure:
            return "it is not that of an error";
        case core::FailureFault::ours:
            return "it is of class ID, which only idem raises";
        case core::FailureFault::transient:
            return "it says that a retry may succeed";
        default:
            return "it is neither a SQLSTATE of five characters, 0-9 and A-Z, nor a class of two";
    }
}

}  // namespace

void not_a_final_sqlstate(const char* argument, std::string_view element) {
    invalid_argument(argument,
                     psprintf("\"%s\" cannot stand for a final failure: %s.", c_string(element),
                              why_not_final(element)),
                     "List SQLSTATEs that your operations raise as a final failure, such as "
                     "\"P0001\", or classes of them, such as \"23\".");
}

// ---- Where a call is made -----------------------------------------------------------------------

// ---- The installation ---------------------------------------------------------------------------

void not_installed(const char* table) {
    ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                    errmsg("extension \"idem\" is not installed in this database"),
                    errdetail("Table \"%s\" does not exist.", table),
                    errhint("Run CREATE EXTENSION idem.")));
}

// ---- Record tables ------------------------------------------------------------------------------

namespace {

constexpr const char* secrets_hint =
    "Restore the rows of idem.secret from the dump that the records came from.";

}  // namespace

void no_secrets() {
    ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                    errmsg("idem has no secrets in this database"),
                    errdetail("The secrets are created with the first scope, and a dump of the "
                              "database contains them."),
                    errhint("%s", secrets_hint)));
}

void fingerprint_secret_missing(std::uint32_t id) {
    ereport(ERROR, (errcode(ERRCODE_DATA_CORRUPTED), errmsg("fingerprint secret %u is missing", id),
                    errdetail("A record's fingerprint was computed with this secret."),
                    errhint("%s", secrets_hint)));
}

void unknown_fingerprint_version() {
    ereport(ERROR,
            (errcode(ERRCODE_DATA_CORRUPTED), errmsg("stored fingerprint is of an unknown version"),
             errdetail("The record was written by a newer version of idem."),
             errhint("Install that version of idem.")));
}

void unknown_request_list(std::string_view scope, std::uint32_t number) {
    ereport(
        ERROR,
        (errcode(ERRCODE_DATA_CORRUPTED),
         errmsg("scope \"%s\" has no list %u of excluded members", c_string(scope), number),
         errdetail("The record was made with a list of \"request_exclude\" that is not among the "
                   "\"request_lists\" of the scope's row in idem.scope."),
         errhint("Restore or replicate idem.scope together with the records, or import the "
                 "identity of the server that has made them.")));
}

void crypto_failure() {
    ereport(ERROR,
            (errcode(ERRCODE_INTERNAL_ERROR), errmsg("could not compute a digest with OpenSSL"),
             errdetail("OpenSSL did not provide SHA-256, HMAC, AES-128 or random bytes."),
             errhint("Check the server's OpenSSL configuration.")));
}

void scope_has_open_claim(std::string_view scope, std::string_view key) {
    ereport(ERROR,
            (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
             errmsg("cannot change scope \"%s\" while this transaction has an open claim in it",
                    c_string(scope)),
             errdetail("This transaction has claimed key \"%s\".", c_string(key)),
             errhint("Complete or release the claim first, or change the scope in a transaction of "
                     "its own.")));
}

void live_keys_lose_identity(std::string_view scope, const char* setting, std::int64_t records,
                             std::int64_t watermarks, TimestampTz until) {
    const char* expiry =
        records == 0 ? "" : psprintf(" The last record expires at %s.", timestamptz_to_str(until));
    ereport(ERROR,
            (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
             errmsg("cannot change \"%s\" of scope \"%s\" while it has live keys", setting,
                    c_string(scope)),
             errdetail("Retries would not find their records, and would run the operations again. "
                       "Unexpired records: %lld; watermarks, which do not expire: %lld.%s",
                       static_cast<long long>(records), static_cast<long long>(watermarks), expiry),
             errhint("Create another scope for new keys, or change this one when its records have "
                     "expired. To give its keys up, pass \"force\" => true.")));
}

// ---- Purging, statistics and the worker ---------------------------------------------------------

namespace {

// What the error says may be of a tenant, so only the log has it.
void passed_over(const char* what, const ErrorData* error) {
    ereport(WARNING,
            (errcode(error->sqlerrcode), errmsg("the purge has passed over %s", what),
             errdetail("An error with the SQLSTATE %s was raised.",
                       unpack_sql_state(error->sqlerrcode)),
             errdetail_log("An error with the SQLSTATE %s was raised: %s.",
                           unpack_sql_state(error->sqlerrcode), error->message),
             errhint("Correct what the error names. The next purge reads these rows again.")));
}

}  // namespace

void rows_passed_over(const char* table, std::uint32_t block, const ErrorData* error) {
    passed_over(psprintf("rows of table %s, from block %u on", table, block), error);
}

void table_passed_over(Oid table, const ErrorData* error) {
    passed_over(psprintf("the table with the OID %u", table), error);
}

void file_failure(const char* attempt, const char* path) {
    ereport(LOG,
            (errcode_for_file_access(), errmsg("could not %s file \"%s\": %m", attempt, path)));
}

void invalid_file(const char* path) {
    ereport(LOG, (errcode(ERRCODE_DATA_CORRUPTED),
                  errmsg("ignoring invalid data in file \"%s\"", path)));
}

}  // namespace idem::pg::report
