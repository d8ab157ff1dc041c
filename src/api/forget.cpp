// idem.forget() deletes the record of one key; idem.purge() deletes expired records. PUBLIC may not
// execute either: a role that only uses a scope cannot erase the scope's history.
//
// forget() deletes under the key lock and releases the lock in the same call. Until its transaction
// ends, other callers find a row that is being deleted and wait for that transaction without the
// key lock. So a transaction can forget any number of keys without filling the lock table, and can
// claim them again. forget() waits for a running lease as a claim does, without a lock.
#include "api/arguments.hpp"
#include "api/claim.hpp"
#include "api/locked_key.hpp"
#include "pg/report.hpp"
#include "pg/sweep.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;
using core::Presence;

enum Argument { arg_scope, arg_key, arg_tenant };

// A running lease means that its holder is working, although no transaction shows it.
bool has_running_lease(const pg::Found& found) {
    const pg::Record& record = found.record;
    return found.presence != Presence::absent && record.state == core::State::in_progress &&
           record.lease_end.value_or(0) > GetCurrentTimestamp();
}

bool is_live(const pg::Found& found) {
    return found.presence == Presence::own || found.record.expires > GetCurrentTimestamp();
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
        const pg::Record& record = found.record;
        if (!bound.nap(pg::key_event(name.digest), *record.lease_end))
            refuse_in_flight(name.key, {std::nullopt, record.created, record.lease_end});
    }
}

// False if there was no live record, or if a writer that bypassed the key lock deleted it first.
bool delete_record(const pg::KeyName& name, const pg::Found& found, const pg::WaitBound& bound) {
    if (found.presence == Presence::absent) return false;
    // An expired row that is being deleted counts as none, whether or not the deletion commits.
    if (found.presence == Presence::deleting && !is_live(found)) return false;
    if (!found.in_snapshot && found.presence != Presence::own)
        report::serialization_failure(
            "The key's record was committed after this transaction's snapshot was taken.");
    const pg::Records records = pg::Records::to_write();
    const pg::WriteResult writing = pg::delete_record(records, found, bound);
    records.close();
    check_written(name.key, writing);
    return writing.outcome == pg::WriteOutcome::written && is_live(found);
}

bool forget(const pg::KeyName& name, const pg::WaitBound& bound) {
    if (is_open_here(name.digest))
        report::claimed_by_this_transaction(name.key,
                                            "Release the claim with idem.release(), or call "
                                            "idem.forget() in another transaction after this one "
                                            "has ended.");
    pg::KeyLock lock(name.digest);
    const bool forgotten = delete_record(name, find_unleased(name, lock, bound), bound);
    lock.release();
    if (forgotten) pg::wake_at_commit(pg::key_event(name.digest));
    return forgotten;
}

constexpr std::int32_t default_max_records = 10'000;

}  // namespace
}  // namespace idem::api

IDEM_FUNCTION(idem_forget_0_2) {
    using namespace idem;
    api::require_writable("idem.forget()");
    const auto key = api::checked_key(pg::text_arg(fcinfo, api::arg_key));
    const auto tenant = api::checked_tenant(pg::text_arg(fcinfo, api::arg_tenant));
    const pg::Scope& scope = pg::usable_scope(pg::text_arg(fcinfo, api::arg_scope), "forget");
    PG_RETURN_BOOL(api::forget(api::key_name(scope, tenant, key), pg::WaitBound(scope.wait)));
}

// For a scheduled job, where the worker does not run.
IDEM_FUNCTION(idem_purge) {
    using namespace idem;
    api::require_writable("idem.purge()");
    const std::int32_t max_records = pg::int_arg(fcinfo, 0).value_or(api::default_max_records);
    if (max_records < 1)
        pg::report::invalid_argument("max_records", "The number must be at least 1.");
    const auto swept = pg::sweep_step(GetCurrentTimestamp(), {max_records, MaxBlockNumber});
    if (swept.subscribed) pg::report::nothing_purged_on_subscriber();
    PG_RETURN_INT64(swept.deleted);
}

// The block at which the next sweep begins.
IDEM_FUNCTION(idem_purge_block) {
    PG_RETURN_INT64(idem::pg::next_block());
}
