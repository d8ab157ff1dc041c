// What administrators do to records and watermarks. PUBLIC may not execute any of these functions:
// a role that only uses a scope cannot change the scope's history.
//
// Locking: a record is changed under its key lock, which is released in the same call. Until the
// transaction ends, other callers find a row that is being changed and wait for that transaction
// without the key lock. So a transaction can change any number of records without filling the lock
// table, and can claim the keys again. forget() and erase() wait for a running lease, without a
// lock; revoke() cuts it.
#include "api/arguments.hpp"
#include "api/locked_key.hpp"
#include "pg/purge.hpp"
#include "pg/server/owner.hpp"
#include "pg/store/key_lock.hpp"
#include "pg/store/scope.hpp"
#include "pg/store/watermark.hpp"

namespace idem::api {
namespace {

// ---- One record ---------------------------------------------------------------------------------

// Its holder is working, although no transaction shows it. An operation that was released has no
// holder, even if it is not to be tried again yet.
bool has_running_lease(const pg::Found& found) {
    const pg::Record& record = found.record;
    return found.presence != core::Presence::absent && record.state() == core::State::in_progress &&
           record.nonce() && record.lease_end().value_or(0) > GetCurrentTimestamp();
}

// As find_at_rest(), and no lease is running. The wait for a lease holds no lock.
pg::Found find_unleased(const pg::Key& key, pg::KeyLock& lock, pg::WaitBound& bound) {
    for (;;) {
        const pg::Found found = find_at_rest(key, lock, bound);
        if (!has_running_lease(found)) {
            pg::withdraw_wait();
            return found;
        }
        lock.release();
        const pg::Holder holder = lease_of(found.record);
        found.record.free();
        if (!bound.wait_for(pg::key_event(key.digest), *holder.lease_end))
            ereport(ERROR,
                    (report::errin_progress(key.key, holder, retry_after(holder)),
                     errhint("Wait for the end of the operation. If its worker is gone or must not "
                             "go on, call idem.revoke() first.")));
    }
}

// Whether the call waits for a running lease, or changes the row under it.
enum class Lease : bool { waits, is_cut };

// Calls change(found) for the row of the key, at rest and under the key lock. Returns what change()
// returns; false without a row. Raises ID001 if this transaction has an open claim of the key.
template <class Change>
bool change_record(const pg::Key& key, const char* call, Lease lease, pg::WaitBound& bound,
                   Change change) {
    pg::trivial<Change>();
    refuse_open_here(key, call);
    pg::KeyLock lock(key.digest);
    const pg::Found found =
        lease == Lease::waits ? find_unleased(key, lock, bound) : find_at_rest(key, lock, bound);
    const bool changed = found.presence != core::Presence::absent && change(found);
    lock.release();
    // A claim or a lookup may be waiting for the lease that has ended now.
    if (changed) pg::wake_at_commit(pg::key_event(key.digest));
    return changed;
}

// False if the record had expired, or if a writer that bypassed the key lock deleted it first.
bool delete_live_record(const pg::Key& key, const pg::Found& found, pg::WaitBound& bound) {
    // An expired row that is being deleted counts as none, whether or not the deletion commits.
    if (found.presence == core::Presence::deleting && !is_live(found)) return false;
    check_in_snapshot(found);
    const pg::ChangeResult writing = pg::delete_record(key.table, found, bound);
    check_written(key.key, writing, bound);
    return writing.result == TM_Ok && is_live(found);
}

void log_change(const char* what, std::string_view scope, const pg::Key& key,
                const pg::Found& found) {
    report::log_transition(what, scope, key.tenant, key.key, found.record.attempt());
}

// ---- revoke -------------------------------------------------------------------------------------

// The row stays, with its request, attempt, recovery point and last error, and without a nonce:
// this fences the holder's token off. The lease, or the time until a retry, ends now. If the
// attempts are used up, the next claim is granted one more.
pg::NewRecord revoked(const pg::Record& old, const pg::Scope& scope) {
    pg::NewRecord record(old);
    record.set_lease_end(GetCurrentTimestamp());
    record.set_expires(*record.lease_end() + ttl_of(old));
    record.set_nonce(std::nullopt);
    record.set_extra_attempts(
        core::granted_attempts(old.attempt(), scope.max_attempts, old.extra_attempts()));
    return record;
}

bool revoke(const KeyCall& call) {
    pg::WaitBound bound(call.scope->wait);
    bool live = false;
    const auto change = [&](const pg::Found& found) {
        live = is_live(found);
        if (!live || found.record.state() != core::State::in_progress) return false;
        replace_record(call.key, found, revoked(found.record, *call.scope), bound);
        pg::wake_at_commit(pg::scope_event(call.key.scope_id));
        log_change("operation was revoked", call.scope->name, call.key, found);
        return true;
    };
    const bool changed = change_record(call.key, "revoke", Lease::is_cut, bound, change);
    if (!live) require_tenant(*call.scope, call.key.tenant);
    return changed;
}

// ---- forget -------------------------------------------------------------------------------------

// An operation that is to be continued from its recovery point is not forgotten by mistake.
void check_forgettable(std::string_view key, const pg::Found& found) {
    const pg::Record& record = found.record;
    if (is_live(found) && record.state() == core::State::in_progress &&
        record.recovery_point() != nullptr)
        ereport(
            ERROR,
            (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
             errmsg("operation \"%s\" is unfinished and has a recovery point",
                    report::c_string(key)),
             errdetail("An attempt has reached the recovery point \"%s\", which idem.forget() "
                       "would remove.",
                       report::c_string(pg::view_of(record.recovery_point()))),
             errhint("Call idem.revoke(), so that the next claim continues from the recovery "
                     "point. If the operation must not be continued, pass \"force\" => true.")));
}

bool forget(const pg::Scope* scope, const pg::Key& key, bool force) {
    pg::WaitBound bound(scope->wait);
    return change_record(key, "forget", Lease::waits, bound, [&](const pg::Found& found) {
        if (!force) check_forgettable(key.key, found);
        const bool forgotten = delete_live_record(key, found, bound);
        if (forgotten) log_change("record was forgotten", scope->name, key, found);
        return forgotten;
    });
}

// ---- erase --------------------------------------------------------------------------------------

// The caller may be a superuser, and the table's indexes and triggers of another role: see
// pg/server/owner. fault_of says what keeps the table's owner from the write.
template <class Write>
bool as_owner(const pg::Key& key, pg::RecordTableFault fault_of(Oid table), Write write) {
    const pg::Records records(key.table, pg::Access::write);
    const Oid table = RelationGetRelid(records.table());
    if (const auto fault = fault_of(table))
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("the rows of table %s are not erased", pg::qualified_name(table)),
                        errdetail("%s", fault.detail), errhint("%s", pg::hint_of(fault))));
    pg::AsOwner owner(records.table());
    const bool written = write();
    owner.end();
    records.close();
    return written;
}

// Of a scope that is gone, records may remain until the purge deletes them: scope is NULL then.
bool erase(const pg::Scope* scope, const pg::Key& key, bool force) {
    constexpr std::int64_t wait_without_scope = 10 * core::usecs_per_second;
    pg::WaitBound bound(scope == nullptr ? wait_without_scope : scope->wait);
    const std::string_view scope_name = scope == nullptr ? "" : pstrdup(scope->name);
    return change_record(key, "erase", Lease::waits, bound, [&](const pg::Found& found) {
        // An expired record is of no use, so nothing of it is kept.
        if (!is_live(found))
            return as_owner(key, pg::owning_fault,
                            [&] { return delete_live_record(key, found, bound); });
        const pg::Record& old = found.record;
        if (!force && old.state() == core::State::in_progress &&
            (old.stored_request() != nullptr || old.recovery_state() != nullptr))
            ereport(ERROR,
                    (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                     errmsg("operation \"%s\" is unfinished", report::c_string(key.key)),
                     errdetail("idem.erase() would remove its request or the state of its recovery "
                               "point, which another attempt needs."),
                     errhint("Claim the key and finish the operation first. If it must not be "
                             "continued, pass \"force\" => true.")));
        const pg::NewRecord rest = pg::erased(old);
        if (rest.is_same_as(old)) return true;
        as_owner(key, pg::rewriting_fault, [&] {
            replace_record(key, found, rest, bound);
            return true;
        });
        log_change("record was erased", scope_name, key, found);
        return true;
    });
}

// ---- All records of a tenant --------------------------------------------------------------------

// There is no index on the tenant, so the calls read all record tables; they lock them, so that no
// record is moved from one to another meanwhile. Then they change one record after the other as for
// a single key, in the order of the digests: of two such calls, the second waits for the first. A
// claim in flight has no record yet and is not found. A table that cannot be read, or must not be
// written, is left out with a WARNING.

// forget() or erase().
using Change = bool(const pg::Scope* scope, const pg::Key& key, bool force);

struct TenantCall {
    const pg::Scope* scope;   // NULL: all scopes
    std::string_view tenant;  // empty: the keys without a tenant
    bool force;
    Change* change;
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
    return {nullptr, tenant, force, erase};
}

// Everything is for superusers: then the scope may be NULL, for all of them.
TenantCall read_tenant_call(FunctionCallInfo fcinfo, const char* function, Change* change) {
    const auto scope_name = pg::text_arg(fcinfo, arg_scope);
    const auto tenant = pg::text_arg(fcinfo, 1);
    if (!tenant) report::missing_argument("tenant");
    const bool force = switch_arg(fcinfo, 2, "force");
    if (!scope_name && change == erase) return everywhere(checked_tenant(tenant), force, function);
    const pg::Scope& scope = pg::usable_scope(scope_name, function);
    return {&scope, tenant_in(scope, checked_tenant(tenant)), force, change};
}

pg::RecordTableFault obstacle(Oid table, const TenantCall& call) {
    const auto fault = pg::fault_of_record_table(table).value_or(pg::RecordTableFault{});
    return fault || call.change != erase ? fault : pg::rewriting_fault(table);
}

// A session that moves records locks the table that they leave. Waits for such a move, and then
// keeps others from beginning. A table that has appeared meanwhile is locked, too.
List* lock_all() {
    List* locked = NIL;
    for (;;) {
        const List* others = list_difference_oid(pg::record_tables(), locked);
        if (others == NIL) return locked;
        for (int i = 0; i < list_length(others); ++i)
            pg::lock_for_transaction(list_nth_oid(others, i), RowExclusiveLock);
        locked = list_concat(locked, others);
    }
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
        if (const auto fault = obstacle(table, call))
            ereport(WARNING,
                    (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                     errmsg("the records in table %s were not reached", pg::qualified_name(table)),
                     errdetail("%s", fault.detail),
                     errhint("Correct this and call the function again. %s", fault.remedy)));
        else
            reached = lappend_oid(reached, table);
    }
    const auto scope = call.scope == nullptr ? std::nullopt : std::optional(call.scope->id);
    const auto places = pg::records_of_tenant(reached, scope, call.tenant);
    const bool all_reached = list_length(reached) == list_length(locked);
    if (places.empty() && all_reached) note_absence(call.tenant);
    return places;
}

// Returns how many records have been changed. A call for all scopes looks each one up, which is
// valid until it looks up the next.
std::int64_t change_tenant(const TenantCall& call) {
    std::int64_t changed = 0;
    const MemoryContext memory =
        AllocSetContextCreate(CurrentMemoryContext, "idem key", ALLOCSET_DEFAULT_SIZES);
    for (const pg::RecordPlace& place : places_of(call)) {
        CHECK_FOR_INTERRUPTS();
        MemoryContextReset(memory);
        const MemoryContext before = MemoryContextSwitchTo(memory);
        if (const auto key = pg::key_behind(place.table, place.digest)) {
            const auto* scope = call.scope ? call.scope : pg::find_scope_by_id(key->scope_id);
            if (call.change(scope, *key, call.force)) ++changed;
        }
        MemoryContextSwitchTo(before);
    }
    MemoryContextDelete(memory);
    return changed;
}

// ---- Streams ------------------------------------------------------------------------------------

std::optional<std::int64_t> reset_stream(const pg::Key& source, std::optional<std::int64_t> seq,
                                         pg::WaitBound& bound) {
    CHECK_FOR_INTERRUPTS();  // a tenant may have millions of sources
    pg::KeyLock lock(source.digest);
    acquire(lock, source.key, bound);
    pg::Watermark mark = pg::find_watermark(source, pg::Access::write);
    while (mark.writer.valid()) {
        reacquire_after(lock, source.key, mark.writer, bound);
        mark = pg::find_watermark(source, pg::Access::write);
    }
    if (seq || mark.seq)
        check_written(source.key, pg::write_watermark(source, mark, seq, bound), bound);
    lock.release();
    return mark.seq;
}

constexpr int arg_tenant = 2;
constexpr int arg_force = 3;

Datum change_key(FunctionCallInfo fcinfo, const char* function, Change* change) {
    require_writable(function);
    const bool force = switch_arg(fcinfo, arg_force, "force");
    const KeyCall call = read_key(fcinfo, arg_tenant, function);
    const bool changed = change(call.scope, call.key, force);
    if (!changed) require_tenant(*call.scope, call.key.tenant);
    PG_RETURN_BOOL(changed);
}

constexpr std::int32_t default_max_records = 10'000;

}  // namespace

IDEM_FUNCTION(idem_revoke) {
    require_writable("revoke");
    PG_RETURN_BOOL(revoke(read_key(fcinfo, arg_tenant, "revoke")));
}

IDEM_FUNCTION(idem_forget) {
    return change_key(fcinfo, "forget", forget);
}

IDEM_FUNCTION(idem_erase) {
    return change_key(fcinfo, "erase", erase);
}

IDEM_FUNCTION(idem_forget_tenant) {
    require_writable("forget_tenant");
    const auto call = read_tenant_call(fcinfo, "forget_tenant", forget);
    const std::int64_t forgotten = change_tenant(call);
    pg::WaitBound bound(call.scope->wait);
    for (const pg::Key& source : pg::sources_of(call.scope->id, call.tenant))
        (void)reset_stream(source, std::nullopt, bound);
    PG_RETURN_INT64(forgotten);
}

IDEM_FUNCTION(idem_erase_tenant) {
    require_writable("erase_tenant");
    PG_RETURN_INT64(change_tenant(read_tenant_call(fcinfo, "erase_tenant", erase)));
}

IDEM_FUNCTION(idem_reset_stream) {
    require_writable("reset_stream", read_by_streams);
    const KeyCall call = read_source(fcinfo, "reset_stream");
    pg::WaitBound bound(call.scope->wait);
    const auto old = reset_stream(call.key, pg::value_arg<std::int64_t>(fcinfo, 2), bound);
    if (old) PG_RETURN_INT64(*old);
    require_tenant(*call.scope, call.key.tenant);
    PG_RETURN_NULL();
}

// For a scheduled job, where the worker does not run.
IDEM_FUNCTION(idem_purge) {
    require_writable("purge");
    const std::int32_t max_records =
        pg::value_arg<std::int32_t>(fcinfo, 0).value_or(default_max_records);
    if (max_records < 1)
        report::invalid_argument("max_records", "The number must be at least 1.",
                                 "Pass how many records to purge at most, such as 10000.");
    const auto done = pg::purge_step(GetCurrentTimestamp(), {max_records, PG_INT64_MAX});
    if (done.subscribed)
        ereport(NOTICE, (errmsg("nothing was purged: the records arrive by subscription"),
                         errdetail("The publisher purges the records, and its deletes are "
                                   "replicated."),
                         errhint("If this server has become the primary, drop the subscription.")));
    PG_RETURN_INT64(done.purged);
}

}  // namespace idem::api
