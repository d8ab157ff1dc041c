#include "pg/server/report.hpp"

#include "pg/server/guc.hpp"

extern "C" {
#include "utils/json.h"
}

namespace idem::pg::report {

char* c_string(std::string_view view) {
    return pnstrdup(view.data(), view.size());
}

int own_error(OwnError error) {
    (void)err_generic_string(PG_DIAG_CONSTRAINT_NAME, error.name);
    (void)err_generic_string(PG_DIAG_SCHEMA_NAME, "idem");
    return errcode(errcode_of(error.sqlstate));
}

// Rounded up, so that a caller that waits so long does not come too early.
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

// Rounded up to a tenth, as the field is to a millisecond.
double seconds_of(std::int64_t retry_after) {
    return static_cast<double>((retry_after + 99'999) / 100'000) / 10;
}

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

void in_progress(std::string_view key, const Holder& holder, std::int64_t retry_after,
                 WaitSetBy wait) {
    const double seconds = seconds_of(retry_after);
    ereport(ERROR,
            (errin_progress(key, holder, retry_after),
             holder.released ? errhint("Retry with the same key after %.1f seconds.", seconds)
             : wait == WaitSetBy::statement_timeout
                 ? errhint("Retry with the same key after %.1f seconds, or raise "
                           "\"statement_timeout\".",
                           seconds)
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

// Statement and context are left out: they may have the request or the answer in them.
void log_transition(const char* what, std::string_view scope, std::string_view tenant,
                    std::string_view key, std::int32_t attempt) {
    if (guc::log_transitions == 0) return;
    ereport(guc::log_transitions,
            (errmsg("%s in scope \"%s\"", what, c_string(scope)),
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

void not_claimed(const char* detail, const char* hint) {
    ereport(ERROR, (own_error("not_claimed"), errmsg("token names no open claim"),
                    errdetail_internal("%s", detail), errhint("%s", hint)));
}

void digest_collision() {
    ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED), errmsg("key cannot be used"),
                    errdetail("The record of another key has the same 128-bit digest."),
                    errhint("Use another key.")));
}

void unknown_scope(std::string_view name, const char* nearest, const char* detail,
                   Creatable creatable) {
    ereport(ERROR,
            (own_error("unknown_scope"), errmsg("scope \"%s\" does not exist", c_string(name)),
             detail != nullptr ? errdetail_internal("%s", detail)
                               : errdetail("No scope in this database has that name."),
             nearest != nullptr ? errhint("Perhaps you meant the scope \"%s\".", nearest)
             : creatable == Creatable::yes
                 ? errhint("Create the scope first with idem.create_scope(), or use one of "
                           "the scopes that idem.scopes lists.")
                 : errhint("Check the name. idem.scopes lists the scopes that you may "
                           "use.")));
}

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

void invalid_argument(const char* name, const char* detail, const char* hint) {
    ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                    errmsg("invalid value for argument \"%s\"", name),
                    errdetail_internal("%s", detail), errhint("%s", hint)));
}

void crypto_failure() {
    ereport(ERROR,
            (errcode(ERRCODE_INTERNAL_ERROR), errmsg("could not compute a digest with OpenSSL"),
             errdetail("OpenSSL did not provide SHA-256, HMAC, AES-128 or random bytes."),
             errhint("Check the server's OpenSSL configuration.")));
}

}  // namespace idem::pg::report
