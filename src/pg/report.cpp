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

void superuser_only(const char* function, const char* detail) {
    ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
                    errmsg("must be superuser to execute %s", function), errdetail("%s", detail),
                    errhint("Ask a superuser to execute it.")));
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

// ---- Where a call is made -----------------------------------------------------------------------

// ---- The installation ---------------------------------------------------------------------------

void not_installed(const char* table) {
    ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                    errmsg("extension \"idem\" is not installed in this database"),
                    errdetail("Table \"%s\" does not exist.", table),
                    errhint("Run CREATE EXTENSION idem.")));
}

// ---- Record tables ------------------------------------------------------------------------------

void crypto_failure() {
    ereport(ERROR,
            (errcode(ERRCODE_INTERNAL_ERROR), errmsg("could not compute a digest with OpenSSL"),
             errdetail("OpenSSL did not provide SHA-256, HMAC, AES-128 or random bytes."),
             errhint("Check the server's OpenSSL configuration.")));
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

}  // namespace idem::pg::report
