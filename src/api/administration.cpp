// What administrators do to records: idem.revoke() takes a leased operation away from its holder,
// idem.forget() deletes a record, and idem.erase() removes what a record holds beside the key and
// the outcome; idem.forget_tenant() and idem.erase_tenant() do so for all records of a tenant, and
// idem.purge() does what the worker does. PUBLIC may not execute any of them: a role that only uses
// a scope cannot change the scope's history.
//
// Locking: a record is changed under its key lock, which is released in the same call. Until the
// transaction ends, other callers find a row that is being changed and wait for that transaction
// without the key lock. So a transaction can change any number of records without filling the lock
// table, and can claim the keys again. forget() and erase() wait for a running lease, without a
// lock; revoke() cuts it.
#include "api/advance.hpp"
#include "api/arguments.hpp"
#include "api/locked_key.hpp"
#include "core/duration.hpp"
#include "pg/boundary.hpp"
#include "pg/owner.hpp"
#include "pg/report.hpp"
#include "pg/scope.hpp"
#include "pg/sweep.hpp"
#include "pg/watermark.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;

constexpr const char* revoke_call = "idem.revoke()";
constexpr const char* forget_call = "idem.forget()";
constexpr const char* erase_call = "idem.erase()";

// ---- One record ---------------------------------------------------------------------------------

// Its holder is working, although no transaction shows it. An operation that was released has no
// holder, even if it is not to be tried again yet.
bool has_running_lease(const pg::Found& found) {
    const pg::Record& record = found.record;
    return found.presence != core::Presence::absent && record.state == core::State::in_progress &&
           record.nonce && record.lease_end.value_or(0) > GetCurrentTimestamp();
}

// As find_at_rest(), and no lease is running. The wait for a lease holds no lock.
pg::Found find_unleased(const pg::KeyName& name, pg::KeyLock& lock, const pg::WaitBound& bound) {
    for (;;) {
        const pg::Found found = find_at_rest(name, lock, bound);
        if (!has_running_lease(found)) {
            pg::withdraw_wait();
            return found;
        }
        lock.release();
        const report::Holder holder = lease_of(found.record);
        pg::free_contents(found.record);
        if (!bound.nap(pg::key_event(name.digest), *holder.lease_end))
            ereport(ERROR,
                    (report::errin_progress(name.key, holder, retry_after(holder)),
                     errhint("Wait for the end of the operation. If its worker is gone or must not "
                             "go on, call idem.revoke() first.")));
    }
}

// Whether the call waits for a running lease, or changes the row under it.
enum class Lease : bool { waits, is_cut };

// Calls change(found) for the row of the key, at rest and under the key lock. Returns what change()
// returns; false without a row. Raises ID001 if this transaction has an open claim of the key.
template <class Change>
bool change_record(const pg::KeyName& name, const char* call, Lease lease,
                   const pg::WaitBound& bound, Change change) {
    pg::trivial<Change>();
    refuse_open_here(name, call);
    pg::KeyLock lock(name.digest);
    const pg::Found found =
        lease == Lease::waits ? find_unleased(name, lock, bound) : find_at_rest(name, lock, bound);
    const bool changed = found.presence != core::Presence::absent && change(found);
    lock.release();
    // A claim or a lookup may be waiting for the lease that has ended now.
    if (changed) pg::wake_at_commit(pg::key_event(name.digest));
    return changed;
}

// False if the record had expired, or if a writer that bypassed the key lock deleted it first.
bool delete_record(const pg::KeyName& name, const pg::Found& found, const pg::WaitBound& bound) {
    // An expired row that is being deleted counts as none, whether or not the deletion commits.
    if (found.presence == core::Presence::deleting && !is_live(found)) return false;
    check_in_snapshot(found);
    const pg::Records records = pg::Records::to_write(name.table);
    const pg::WriteResult writing = pg::delete_record(records, found, bound);
    records.close();
    check_written(name.key, writing);
    return writing.outcome == pg::WriteOutcome::written && is_live(found);
}

void log_change(const char* what, std::string_view scope, const pg::KeyName& name,
                const pg::Found& found) {
    report::log_transition(what, scope, name.tenant, name.key, found.record.attempt);
}

// ---- revoke -------------------------------------------------------------------------------------

// The row stays, with its request, attempt, recovery point and last error, and without a nonce:
// this fences the holder's token off. The lease, or the time until a retry, ends now. If the
// attempts are used up, the next claim is granted one more.
pg::Record revoked(const pg::Record& old, const pg::Scope& scope) {
    pg::Record record = old;
    record.lease_end = GetCurrentTimestamp();
    record.expires = expires_after(old, *record.lease_end);
    record.nonce = std::nullopt;
    record.extra_attempts =
        core::granted_attempts(old.attempt, scope.max_attempts, old.extra_attempts);
    return record;
}

// False unless the operation is unfinished.
bool revoke(const KeyCall& call) {
    const pg::WaitBound bound(call.scope->wait);
    bool live = false;
    const auto change = [&](const pg::Found& found) {
        live = is_live(found);
        if (!live || found.record.state != core::State::in_progress) return false;
        replace_record(call.name, found, revoked(found.record, *call.scope), bound);
        pg::wake_at_commit(pg::scope_event(call.name.scope_id));
        log_change("operation was revoked", call.scope->name, call.name, found);
        return true;
    };
    const bool changed = change_record(call.name, revoke_call, Lease::is_cut, bound, change);
    if (!live) require_tenant(*call.scope, call.name.tenant);
    return changed;
}

// ---- forget -------------------------------------------------------------------------------------

// An operation that is to be continued from its recovery point is not forgotten by mistake.
void check_abandoned(std::string_view key, const pg::Found& found) {
    const pg::Record& record = found.record;
    if (is_live(found) && record.state == core::State::in_progress &&
        record.recovery_point != nullptr)
        ereport(
            ERROR,
            (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
             errmsg("operation \"%s\" is unfinished and has a recovery point",
                    report::c_string(key)),
             errdetail("An attempt has reached the recovery point \"%s\", which idem.forget() "
                       "would remove.",
                       report::c_string(pg::view_of(record.recovery_point))),
             errhint("Call idem.revoke(), so that the next claim continues from the recovery "
                     "point. If the operation must not be continued, pass \"force\" => true.")));
}

bool forget(const pg::Scope& scope, const pg::KeyName& name, bool force) {
    const pg::WaitBound bound(scope.wait);
    return change_record(name, forget_call, Lease::waits, bound, [&](const pg::Found& found) {
        if (!force) check_abandoned(name.key, found);
        const bool forgotten = delete_record(name, found, bound);
        if (forgotten) log_change("record was forgotten", scope.name, name, found);
        return forgotten;
    });
}

// ---- erase --------------------------------------------------------------------------------------

bool is_needed(const pg::Record& record) {
    return record.state == core::State::in_progress &&
           (record.request != nullptr || record.recovery_state != nullptr);
}

bool differs(const pg::Record& rest, const pg::Record& record) {
    return rest.headers != record.headers || rest.response != record.response ||
           rest.body != record.body || rest.error != record.error ||
           rest.request != record.request || rest.recovery_state != record.recovery_state;
}

// The caller may be a superuser, and the table's indexes of another role: see pg/owner.
void rewrite(const pg::KeyName& name, const pg::Found& found, const pg::Record& rest,
             const pg::WaitBound& bound) {
    const pg::Records records = pg::Records::to_write(name.table);
    const Oid caller = pg::keeps_from_rewriting(records.table());
    if (OidIsValid(caller))
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("the rows of table %s are not rewritten",
                               pg::qualified_name(RelationGetRelid(records.table()))),
                        errdetail("%s calls a function that is not built in, and the owner of the "
                                  "table is a superuser: the function would have the rights of a "
                                  "superuser.",
                                  pg::qualified_name(caller)),
                        errhint("Drop the index, or take the table out of the partitioned "
                                "table.")));
    pg::AsOwner owner(records.table());
    replace_record(name, found, rest, bound);
    owner.end();
    records.close();
}

// Of a scope that is gone, records may remain until the purge deletes them: scope is NULL then.
bool erase(const pg::Scope* scope, const pg::KeyName& name, bool force) {
    constexpr std::int64_t wait_without_scope = 10 * core::usecs_per_second;
    const pg::WaitBound bound(scope == nullptr ? wait_without_scope : scope->wait);
    const std::string_view scope_name = scope == nullptr ? "" : pstrdup(scope->name);
    return change_record(name, erase_call, Lease::waits, bound, [&](const pg::Found& found) {
        // An expired record is of no use, so nothing of it is kept.
        if (!is_live(found)) return delete_record(name, found, bound);
        if (!force && is_needed(found.record))
            ereport(ERROR,
                    (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                     errmsg("operation \"%s\" is unfinished", report::c_string(name.key)),
                     errdetail("idem.erase() would remove its request or the state of its recovery "
                               "point, which another attempt needs."),
                     errhint("Claim the key and finish the operation first. If it must not be "
                             "continued, pass \"force\" => true.")));
        const pg::Record rest = pg::erased(found.record);
        if (!differs(rest, found.record)) return true;
        rewrite(name, found, rest, bound);
        log_change("record was erased", scope_name, name, found);
        return true;
    });
}

// ---- All records of a tenant --------------------------------------------------------------------

// There is no index on the tenant, so the calls read all record tables; they lock them, so that no
// record is moved from one to another meanwhile. Then they change one record after the other as for
// a single key, in the order of the digests: of two such calls, the second waits for the first. A
// claim in flight has no record yet and is not found. A table that cannot be read, or must not be
// written, is left out with a WARNING.

// What the call does to the rows.
enum class Rows : bool { deleted, rewritten };

struct TenantCall {
    const pg::Scope* scope;   // NULL: all scopes
    std::string_view tenant;  // empty: the keys without a tenant
    bool force;
    Rows rows;
};

// The tenant in all scopes. Without a name, it would be every key that has no tenant.
TenantCall everywhere(std::string_view tenant, bool force, const char* function) {
    if (!superuser())
        ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
                        errmsg("must be superuser to execute idem.%s() for all scopes", function),
                        errdetail("It changes the records of every role."),
                        errhint("Ask a superuser to execute it.")));
    if (tenant.empty())
        report::invalid_argument("tenant", "For all scopes, the tenant must not be empty.",
                                 "Erase the keys without a tenant in each scope.");
    return {nullptr, tenant, force, Rows::rewritten};
}

// Everything is for superusers: then the scope may be NULL, for all of them.
TenantCall read_tenant_call(FunctionCallInfo fcinfo, const char* function, Rows rows) {
    const auto scope_name = pg::text_arg(fcinfo, arg_scope);
    const auto tenant = pg::text_arg(fcinfo, 1);
    if (!tenant) report::missing_argument("tenant");
    const bool force = force_arg(fcinfo, 2);
    if (!scope_name && rows == Rows::rewritten)
        return everywhere(checked_tenant(tenant), force, function);
    const pg::Scope& scope = pg::usable_scope(scope_name, function);
    return {&scope, tenant_in(scope, checked_tenant(tenant)), force, rows};
}

// Why the table's records are not reached, if they are not.
std::optional<pg::RecordTableFault> obstacle(Oid table, Rows rows) {
    const auto fault = pg::fault_of_record_table(table);
    if (!fault || fault->detail != nullptr) return fault;
    if (rows == Rows::deleted) return std::nullopt;
    Relation relation = pg::try_open_records(table, AccessShareLock);
    if (relation == nullptr) return std::nullopt;
    const Oid caller = pg::keeps_from_rewriting(relation);
    relation_close(relation, AccessShareLock);
    if (!OidIsValid(caller)) return std::nullopt;
    return pg::RecordTableFault{
        psprintf("%s calls a function that is not built in, and the owner of the table is a "
                 "superuser.",
                 pg::qualified_name(caller)),
        "Drop the index, or take the table out of the partitioned table."};
}

// A session that moves records locks the table that they leave. Waits for such a move, and then
// keeps others from beginning. A table that has appeared meanwhile is locked, too.
List* lock_all() {
    List* locked = NIL;
    for (bool again = true; again;) {
        again = false;
        List* tables = pg::record_tables();
        for (int i = 0; i < list_length(tables); ++i) {
            const Oid table = list_nth_oid(tables, i);
            if (list_member_oid(locked, table)) continue;
            LockRelationOid(table, RowExclusiveLock);
            locked = lappend_oid(locked, table);
            again = true;
        }
        list_free(tables);
    }
    return locked;
}

void note_absence(std::string_view tenant) {
    if (tenant.empty())
        ereport(NOTICE, (errmsg("there are no records without a tenant")));
    else
        ereport(NOTICE,
                (errmsg("tenant \"%s\" has no records", report::c_string(tenant)),
                 errdetail("Tenants are compared exactly, as the calls passed them."),
                 errhint("To find keys that were claimed without the tenant, look for them in "
                         "columns that are filled by idem.current_key(), and pass each key to "
                         "idem.erase() or idem.forget().")));
}

// The places of the tenant's records. A NOTICE says that there are none.
std::span<const pg::RecordPlace> places_of(const TenantCall& call) {
    const List* locked = lock_all();
    List* reached = NIL;
    for (int i = 0; i < list_length(locked); ++i) {
        const Oid table = list_nth_oid(locked, i);
        if (const auto fault = obstacle(table, call.rows))
            ereport(WARNING,
                    (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                     errmsg("the records in table %s were not reached", pg::qualified_name(table)),
                     errdetail("%s", fault->detail),
                     errhint("Correct this and call the function again. %s", fault->remedy)));
        else
            reached = lappend_oid(reached, table);
    }
    const auto scope = call.scope == nullptr ? std::nullopt : std::optional(call.scope->id);
    const auto places = pg::records_of_tenant(reached, scope, call.tenant);
    const bool all_reached = list_length(reached) == list_length(locked);
    if (places.empty() && all_reached) note_absence(call.tenant);
    return places;
}

bool change_one(const TenantCall& call, const pg::KeyName& name) {
    if (call.rows == Rows::deleted) return forget(*call.scope, name, call.force);
    return erase(pg::find_scope_by_id(name.scope_id), name, call.force);
}

// Returns how many records have been changed.
std::int64_t change_tenant(const TenantCall& call) {
    std::int64_t changed = 0;
    const MemoryContext memory =
        AllocSetContextCreate(CurrentMemoryContext, "idem key", ALLOCSET_DEFAULT_SIZES);
    for (const pg::RecordPlace& place : places_of(call)) {
        CHECK_FOR_INTERRUPTS();
        MemoryContextReset(memory);
        const MemoryContext before = MemoryContextSwitchTo(memory);
        const pg::Records records = pg::Records::to_read(place.table);
        const auto name = pg::name_behind(records, place.digest);
        records.close();
        if (name && change_one(call, *name)) ++changed;
        MemoryContextSwitchTo(before);
    }
    MemoryContextDelete(memory);
    return changed;
}

// The watermarks say how far the tenant's streams have come.
void forget_streams(const TenantCall& call) {
    const pg::WaitBound bound(call.scope->wait);
    const List* sources = pg::sources_of(call.scope->id, call.tenant);
    for (int i = 0; i < list_length(sources); ++i)
        (void)reset_stream(*static_cast<const pg::KeyName*>(list_nth(sources, i)), std::nullopt,
                           bound);
}

// ---- The SQL functions --------------------------------------------------------------------------

constexpr int arg_tenant = 2;  // after the scope and the key
constexpr int arg_force = 3;
constexpr std::int32_t default_max_records = 10'000;

}  // namespace
}  // namespace idem::api

IDEM_FUNCTION(idem_revoke) {
    using namespace idem;
    api::require_writable(api::revoke_call);
    PG_RETURN_BOOL(api::revoke(api::read_key(fcinfo, api::arg_tenant, "revoke")));
}

IDEM_FUNCTION(idem_forget) {
    using namespace idem;
    api::require_writable(api::forget_call);
    const bool force = api::force_arg(fcinfo, api::arg_force);
    const api::KeyCall call = api::read_key(fcinfo, api::arg_tenant, "forget");
    const bool forgotten = api::forget(*call.scope, call.name, force);
    if (!forgotten) api::require_tenant(*call.scope, call.name.tenant);
    PG_RETURN_BOOL(forgotten);
}

IDEM_FUNCTION(idem_erase) {
    using namespace idem;
    api::require_writable(api::erase_call);
    const bool force = api::force_arg(fcinfo, api::arg_force);
    const api::KeyCall call = api::read_key(fcinfo, api::arg_tenant, "erase");
    const bool erased = api::erase(call.scope, call.name, force);
    if (!erased) api::require_tenant(*call.scope, call.name.tenant);
    PG_RETURN_BOOL(erased);
}

IDEM_FUNCTION(idem_forget_tenant) {
    using namespace idem;
    api::require_writable("idem.forget_tenant()");
    const auto call = api::read_tenant_call(fcinfo, "forget_tenant", api::Rows::deleted);
    const std::int64_t forgotten = api::change_tenant(call);
    api::forget_streams(call);
    PG_RETURN_INT64(forgotten);
}

IDEM_FUNCTION(idem_erase_tenant) {
    using namespace idem;
    api::require_writable("idem.erase_tenant()");
    PG_RETURN_INT64(
        api::change_tenant(api::read_tenant_call(fcinfo, "erase_tenant", api::Rows::rewritten)));
}

// For a scheduled job, where the worker does not run.
IDEM_FUNCTION(idem_purge) {
    using namespace idem;
    api::require_writable("idem.purge()");
    const std::int32_t max_records = pg::int_arg(fcinfo, 0).value_or(api::default_max_records);
    if (max_records < 1)
        pg::report::invalid_argument("max_records", "The number must be at least 1.",
                                     "Pass how many records to purge at most, such as 10000.");
    const auto swept = pg::sweep_step(GetCurrentTimestamp(), {max_records, PG_INT64_MAX});
    if (swept.subscribed)
        ereport(NOTICE, (errmsg("nothing was purged: the records arrive by subscription"),
                         errdetail("The publisher purges the records, and its deletes are "
                                   "replicated."),
                         errhint("If this server has become the primary, drop the subscription.")));
    PG_RETURN_INT64(swept.deleted + swept.erased);
}
