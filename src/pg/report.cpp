#include "pg/report.hpp"

#include "core/errors.hpp"
#include "pg/compat.hpp"
#include "pg/error_object.hpp"
#include "pg/guc.hpp"

namespace idem::pg::report {
namespace {

constexpr int errcode_of(std::string_view sqlstate) {
    return MAKE_SQLSTATE(sqlstate[0], sqlstate[1], sqlstate[2], sqlstate[3], sqlstate[4]);
}

consteval int errcode_named(std::string_view name) {
    return errcode_of(core::own_error(name).sqlstate);
}

char* c_string(std::string_view view) {
    return pnstrdup(view.data(), view.size());
}

char* holder_detail(const Holder& holder) {
    if (holder.lease_end && holder.since) {
        char* since = pstrdup(timestamptz_to_str(*holder.since));
        return psprintf("It was claimed at %s, under a lease that ends at %s.", since,
                        timestamptz_to_str(*holder.lease_end));
    }
    if (holder.pid && holder.since)
        return psprintf("Process %d has been at it in a transaction since %s.", *holder.pid,
                        timestamptz_to_str(*holder.since));
    if (holder.pid) return psprintf("Process %d is at it in a transaction.", *holder.pid);
    if (holder.prepared)
        return psprintf(
            "Prepared transaction %u holds the key until it is committed or rolled back: SELECT "
            "gid FROM pg_prepared_xacts WHERE transaction = '%u'.",
            *holder.prepared, *holder.prepared);
    return pstrdup("Another transaction, possibly a prepared one, is at it.");
}

// "a", "b"
char* quoted_list(std::span<char* const> names) {
    StringInfoData list;
    initStringInfo(&list);
    for (const char* name : names)
        appendStringInfo(&list, "%s\"%s\"", list.len == 0 ? "" : ", ", name);
    return list.data;
}

// Failures stored by releases before 0.3.0 may have any sqlstate, transient ones included.
bool names_a_failure(std::string_view state) {
    const core::FailureFault fault = core::failure_fault(state);
    return fault == core::FailureFault::none || fault == core::FailureFault::transient;
}

int failure_sqlstate(const char* state) {
    if (state == nullptr || !names_a_failure(state)) return errcode_named("key_failed");
    return errcode_of(state);
}

}  // namespace

void in_progress(std::string_view key, const Holder& holder, std::int64_t retry_after,
                 WaitSetBy wait) {
    const double seconds = static_cast<double>(retry_after) / USECS_PER_SEC;
    ereport(ERROR,
            (errcode(errcode_named("in_progress")),
             errmsg("operation \"%s\" is in progress", c_string(key)),
             errdetail_internal("%s", holder_detail(holder)),
             wait == WaitSetBy::argument
                 ? errhint("Retry with the same key after %.1f seconds, or pass a longer \"wait\".",
                           seconds)
                 : errhint("Retry after %.1f seconds, or raise the scope's \"wait\" with "
                           "idem.alter_scope().",
                           seconds)));
    pg_unreachable();
}

void lock_timeout() {
    ereport(ERROR, (errcode(ERRCODE_LOCK_NOT_AVAILABLE),
                    errmsg("canceling statement due to lock timeout")));
    pg_unreachable();
}

void claimed_by_this_transaction(std::string_view key, const char* hint) {
    ereport(ERROR,
            (errcode(errcode_named("in_progress")),
             errmsg("operation \"%s\" is in progress", c_string(key)),
             errdetail("The key is claimed by this transaction, which has not completed it."),
             hint != nullptr
                 ? errhint("%s", hint)
                 : errhint("Complete the first claim before claiming again. \"(f()).*\" calls a "
                           "function once per column: call it in FROM.")));
    pg_unreachable();
}

constexpr const char* conflict_hint =
    "Use a new key for a new operation, and repeat the request unchanged for a retry; what may "
    "differ belongs into the scope's \"request_exclude\".";

void key_conflict(std::string_view key) {
    ereport(ERROR, (errcode(errcode_named("key_conflict")),
                    errmsg("key \"%s\" was used for a different request", c_string(key)),
                    errdetail("The request differs from the one that the key was first used with."),
                    errhint("%s", conflict_hint)));
    pg_unreachable();
}

// Statement and context are left out: they may have the request in them.
void log_conflict(int level, std::string_view scope, std::string_view tenant,
                  std::string_view key) {
    ereport(level, (errcode(errcode_named("key_conflict")),
                    errmsg("conflicting requests for a key in scope \"%s\"", c_string(scope)),
                    tenant.empty()
                        ? errdetail("Key \"%s\" was used for a different request.", c_string(key))
                        : errdetail("Key \"%s\" of tenant \"%s\" was used for a different request.",
                                    c_string(key), c_string(tenant)),
                    errhint("%s", conflict_hint), errhidestmt(true), errhidecontext(true)));
}

void stored_failure(std::string_view key, Jsonb* error) {
    const char* message = error_member(error, "message");
    const char* detail = error_member(error, "detail");
    const char* hint = error_member(error, "hint");
    const int sqlstate = failure_sqlstate(error_member(error, "sqlstate"));
    if (message == nullptr)
        message = psprintf("operation \"%s\" has failed for good", c_string(key));
    if (sqlstate == errcode_named("key_failed") && detail == nullptr)
        detail = "The failure is stored, and every retry gets it.";
    if (sqlstate == errcode_named("key_failed") && hint == nullptr)
        hint = "Use a new key to try the operation again; idem.lookup() shows the stored failure.";
    ereport(ERROR, (errcode(sqlstate), errmsg_internal("%s", message),
                    detail != nullptr ? errdetail_internal("%s", detail) : 0,
                    hint != nullptr ? errhint("%s", hint) : 0));
    pg_unreachable();
}

void attempts_exhausted(std::string_view key, std::int32_t attempts) {
    ereport(ERROR,
            (errcode(errcode_named("key_failed")),
             errmsg("operation \"%s\" has failed for good", c_string(key)),
             errdetail("Attempt %d was the last that the scope's \"max_attempts\" allows, and its "
                       "lease is over.",
                       attempts),
             errhint("Find out why the attempts did not finish, then raise the scope's "
                     "\"max_attempts\" or use a new key.")));
    pg_unreachable();
}

void lease_lost(const char* detail) {
    ereport(
        ERROR,
        (errcode(errcode_named("lease_lost")), errmsg("lease of this attempt is lost"),
         detail != nullptr
             ? errdetail_internal("%s", detail)
             : errdetail("The token has no attempt that you may continue: its claim was rolled "
                         "back or has not been committed yet, the operation was released, taken "
                         "over or forgotten, or has expired, or the scope is not yours to use."),
         errhint("Stop working on the operation and roll back, or claim its key again.")));
    pg_unreachable();
}

void not_leased(const char* function) {
    ereport(ERROR,
            (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
             errmsg("idem.%s() needs a leased claim", function),
             errdetail("The token is of an atomic claim, which lasts as long as its transaction."),
             errhint("Claim with the argument \"lease\".")));
    pg_unreachable();
}

namespace {

[[noreturn]] void not_claimed(const char* detail, const char* hint) {
    ereport(ERROR, (errcode(errcode_named("not_claimed")), errmsg("token names no open claim"),
                    errdetail_internal("%s", detail), errhint("%s", hint)));
    pg_unreachable();
}

}  // namespace

void no_token() {
    not_claimed("The token is null.",
                "A replay has no token: test \"claimed\" first, and return the stored answer where "
                "it is false.");
}

void malformed_token() {
    not_claimed("The text is not a token of idem.claim().",
                "Pass the column \"token\" of the claim's result, unchanged.");
}

void claim_finished() {
    not_claimed(
        "The claim is already completed or failed.",
        "Call idem.complete() or idem.fail() once per claim; idem.lookup() shows what is stored.");
}

void claim_released() {
    not_claimed("The claim was released by this transaction.",
                "Claim the key again to work on the operation.");
}

void foreign_claim() {
    not_claimed(
        "It belongs to another transaction, or to a claim that was released or rolled back.",
        "Use the token in the transaction that made the claim, or pass \"lease\" to idem.claim() "
        "for a claim that outlives it; idem.lookup() tells what became of a key.");
}

void claim_incomplete(std::string_view scope, std::string_view key, Unfinished where) {
    const bool preparing = where == Unfinished::at_prepare;
    ereport(
        ERROR,
        (errcode(errcode_named("claim_incomplete")),
         preparing ? errmsg("cannot prepare a transaction with an open claim")
                   : errmsg("cannot commit a transaction with an open claim"),
         errdetail("Key \"%s\" in scope \"%s\" was claimed, but neither completed, failed nor "
                   "released.",
                   c_string(key), c_string(scope)),
         where == Unfinished::by_single_statement
             ? errhint(
                   "Outside a transaction block each statement is a transaction: begin one with "
                   "BEGIN, claim, do the work, call idem.complete(), and COMMIT.")
             : errhint("Call idem.complete(), idem.fail() or idem.release() with the claim's token "
                       "before the transaction that claims ends.")));
    pg_unreachable();
}

void invalid_key(const char* message, const char* detail, const char* hint) {
    ereport(ERROR, (errcode(errcode_named("invalid_key")), errmsg_internal("%s", message),
                    errdetail_internal("%s", detail), errhint("%s", hint)));
    pg_unreachable();
}

void stale_key(std::string_view key, TimestampTz made, bool from_future) {
    if (from_future)
        ereport(ERROR, (errcode(errcode_named("stale_key")),
                        errmsg("idempotency key \"%s\" is ahead of time", c_string(key)),
                        errdetail("Its time, %s, is more than 10 minutes in the future.",
                                  timestamptz_to_str(made)),
                        errhint("Check the client's clock, and send a new key.")));
    ereport(ERROR,
            (errcode(errcode_named("stale_key")),
             errmsg("idempotency key \"%s\" is stale", c_string(key)),
             errdetail("Its time, %s, is longer ago than the TTL: the operation may have been "
                       "completed, and its record have expired.",
                       timestamptz_to_str(made)),
             errhint("Find out whether the operation was done; if not, send a new key.")));
    pg_unreachable();
}

namespace {

char* weakness_detail(std::string_view scope, std::string_view weakness) {
    return psprintf(
        "Its weakness is \"%s\", and scope \"%s\" watches for that: such keys are used "
        "twice sooner or later.",
        c_string(weakness), c_string(scope));
}

constexpr const char* weakness_hint =
    "Send a UUID or another long random string, or a name of the operation such as "
    "\"order-4711\".";

}  // namespace

void weak_key(std::string_view key, std::string_view scope, std::string_view weakness) {
    ereport(ERROR, (errcode(errcode_named("invalid_key")),
                    errmsg("idempotency key \"%s\" is too weak", c_string(key)),
                    errdetail_internal("%s", weakness_detail(scope, weakness)),
                    errhint("%s", weakness_hint)));
    pg_unreachable();
}

void warn_of_weak_key(std::string_view key, std::string_view scope, std::string_view weakness) {
    ereport(
        WARNING,
        (errcode(ERRCODE_WARNING), errmsg("idempotency key \"%s\" is weak", c_string(key)),
         errdetail_internal("%s", weakness_detail(scope, weakness)), errhint("%s", weakness_hint)));
}

void no_scope() {
    ereport(ERROR, (errcode(errcode_named("unknown_scope")), errmsg("scope must not be null"),
                    errdetail("The name of the scope is null."),
                    errhint("Pass a scope's name; idem.scopes lists those that you may use.")));
    pg_unreachable();
}

void unknown_scope(std::string_view name, const char* nearest, const char* detail, bool creatable) {
    ereport(ERROR,
            (errcode(errcode_named("unknown_scope")),
             errmsg("scope \"%s\" does not exist", c_string(name)),
             detail != nullptr ? errdetail_internal("%s", detail)
                               : errdetail("No scope in this database has that name."),
             nearest != nullptr ? errhint("Perhaps you meant the scope \"%s\".", nearest)
             : creatable ? errhint("Create the scope first with idem.create_scope(); idem.scopes "
                                   "lists those that you may use.")
                         : errhint("idem.scopes lists the scopes that you may use.")));
    pg_unreachable();
}

namespace {

// Where the owner is a superuser nobody should be granted membership: the scope is given away.
char* membership_hint(const char* scope, Oid owner, const char* owner_name) {
    if (owner_name == nullptr || superuser_arg(owner))
        return psprintf(
            "Have a superuser give the scope to a role of its users, such as: SELECT "
            "idem.alter_scope(%s, owner => %s).",
            quote_literal_cstr(scope),
            quote_literal_cstr(quote_identifier(GetUserNameFromId(GetUserId(), false))));
    const char* role = pstrdup(quote_identifier(owner_name));
    if (compat::may_become(GetUserId(), owner)) return psprintf("Run SET ROLE %s first.", role);
    return psprintf("Have an administrator of the role run GRANT %s TO %s.", role,
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
    pg_unreachable();
}

void too_many_open_claims(int limit) {
    ereport(ERROR,
            (errcode(errcode_named("limit_exceeded")), errmsg("too many claims in one transaction"),
             errdetail("This transaction holds %d key locks, the most that "
                       "\"idem.max_open_claims\" allows.",
                       limit),
             errhint("Commit in smaller batches: the lock table is shared by the whole "
                     "server.")));
    pg_unreachable();
}

void claim_required(Relation relation, std::span<char* const> scopes) {
    ereport(
        ERROR,
        (errcode(errcode_named("claim_required")),
         errmsg("cannot write to table \"%s\" without a claim", RelationGetRelationName(relation)),
         errdetail_plural("This transaction has no claim in scope %s.",
                          "This transaction has no claim in any of the scopes %s.", scopes.size(),
                          quoted_list(scopes)),
         errhint("Claim the operation's key with idem.claim() first, in the transaction and "
                 "savepoint that writes."),
         errtable(relation)));
    pg_unreachable();
}

// Up to the next tenth of a second, so that whoever waits so long does not come too early.
void too_many_claims_per_minute(const char* scope, std::int32_t limit, std::int64_t retry_after) {
    ereport(ERROR,
            (errcode(errcode_named("limit_exceeded")),
             errmsg("too many new claims in scope \"%s\"", scope),
             errdetail("The scope admits %d new claims a minute of each tenant.", limit),
             errhint("Retry with the same key after %.1f seconds. Retries of finished operations "
                     "are answered all the time.",
                     static_cast<double>((retry_after + 99'999) / 100'000) / 10)));
    pg_unreachable();
}

void too_large(const char* what, Size size) {
    ereport(ERROR,
            (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED), errmsg("%s is too large", what),
             errdetail("It has %zu bytes; \"idem.max_answer_size\" allows %zu bytes.", size,
                       Size{1024} * static_cast<Size>(guc::max_answer_size)),
             errhint("Store what is large in a table of your own, and a reference to it here.")));
    pg_unreachable();
}

void sequence_gap(std::string_view source, std::int64_t expected, std::int64_t got) {
    ereport(ERROR,
            (errcode(errcode_named("sequence_gap")),
             errmsg("gap in the sequence of source \"%s\"", c_string(source)),
             errdetail("Expected number " INT64_FORMAT ", got " INT64_FORMAT ".", expected, got),
             errhint("Handle the messages in between first; \"contiguous => false\" passes over "
                     "them.")));
    pg_unreachable();
}

void digest_collision() {
    ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED), errmsg("key cannot be used"),
                    errdetail("Its 128-bit digest is taken by a record of another key."),
                    errhint("Use another key.")));
    pg_unreachable();
}

void no_digest_index(const char* table) {
    ereport(ERROR,
            (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
             errmsg("table \"idem.%s\" has no usable primary key", table),
             errdetail("Its primary key must be the column \"digest\" alone, and not deferrable: "
                       "without it an operation could be executed twice."),
             errhint("As a superuser, drop the primary key that the table may have, and run ALTER "
                     "TABLE idem.%s ADD PRIMARY KEY (digest).",
                     table)));
    pg_unreachable();
}

void serialization_failure(const char* detail) {
    ereport(ERROR, (errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
                    errmsg("could not serialize access due to concurrent update"),
                    errdetail_internal("%s", detail), errhint("Retry the transaction.")));
    pg_unreachable();
}

void missing_argument(const char* name) {
    ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
                    errmsg("argument \"%s\" must not be null", name),
                    errdetail("It has no default."), errhint("Pass a value for \"%s\".", name)));
    pg_unreachable();
}

void null_argument(const char* name) {
    ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
                    errmsg("argument \"%s\" must not be null", name),
                    errdetail("NULL does not stand for its default."),
                    errhint("Pass a value for \"%s\", or leave it out to get its default.", name)));
    pg_unreachable();
}

void missing_request(const char* scope) {
    ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
                    errmsg("argument \"request\" must not be null"),
                    errdetail("Scope \"%s\" requires a request.", scope),
                    errhint("Pass what the client asks for as \"request\".")));
    pg_unreachable();
}

void invalid_argument(const char* name, const char* detail, const char* hint) {
    ereport(
        ERROR,
        (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
         errmsg("invalid value for argument \"%s\"", name), errdetail_internal("%s", detail),
         hint != nullptr ? errhint("%s", hint) : errhint("Pass such a value for \"%s\".", name)));
    pg_unreachable();
}

void read_only(const char* call, const char* reading) {
    const bool standby = RecoveryInProgress();
    ereport(ERROR,
            (errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
             standby ? errmsg("cannot execute %s during recovery", call)
                     : errmsg("cannot execute %s in a read-only transaction", call),
             errdetail("The call may write, whatever it finds."),
             errhint("%s%s",
                     standby ? "Call it on the primary." : "Call it in a read-write transaction.",
                     reading)));
    pg_unreachable();
}

void parallel(const char* call) {
    ereport(ERROR, (errcode(ERRCODE_INVALID_TRANSACTION_STATE),
                    errmsg("cannot execute %s during a parallel operation", call),
                    errdetail("A parallel worker does not know what its leader has claimed."),
                    errhint("Mark the functions that call it PARALLEL UNSAFE.")));
    pg_unreachable();
}

void crypto_failure() {
    ereport(ERROR,
            (errcode(ERRCODE_INTERNAL_ERROR), errmsg("could not compute a digest with OpenSSL"),
             errdetail("OpenSSL refused SHA-256, HMAC or AES-128, or has no randomness."),
             errhint("Check the server's OpenSSL configuration.")));
    pg_unreachable();
}

void scope_ids_used_up() {
    ereport(ERROR,
            (errcode(ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED), errmsg("scope ids are used up"),
             errdetail("The id of a new scope must be above every id in idem.scope, "
                       "idem.dropped_scope, idem.record and idem.watermark, and above what "
                       "sequence idem.scope_id has given, and be at most %d.",
                       PG_INT32_MAX),
             errhint("Look for an id that no scope has had, and delete its rows; if the "
                     "sequence was set too high, set it back with ALTER SEQUENCE.")));
    pg_unreachable();
}

}  // namespace idem::pg::report
