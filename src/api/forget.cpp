// idem.forget(): deletes the record of one key, so that the operation may run again. A role that
// merely uses a scope cannot erase its history: EXECUTE is not PUBLIC's.
//
// The record is deleted under the key lock, which is freed in the same call: until the transaction
// ends, others find a row that is being deleted, and wait for it without the key lock. So a
// transaction may forget any number of keys without filling the lock table, and claim them again.
// A running lease is waited for as a claim waits for it, without a lock.
#include "api/arguments.hpp"
#include "api/settled.hpp"
#include "pg/open_claims.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;
using core::Presence;

enum Argument { arg_scope, arg_key, arg_tenant };

// Whoever works under a lease is at it, though no transaction tells.
bool has_running_lease(const pg::Found& found) {
    const pg::Record& record = found.record;
    return found.presence != Presence::absent && record.state == core::State::in_progress &&
           record.lease_end.value_or(0) > GetCurrentTimestamp();
}

bool is_live(const pg::Found& found) {
    return found.presence == Presence::own || found.record.expires > GetCurrentTimestamp();
}

// settled(), and no lease is running; the key lock is not held while one is waited for.
pg::Found at_rest(const pg::KeyName& name, pg::KeyLock& lock, const pg::WaitBound& bound) {
    for (;;) {
        const pg::Found found = settled(name, lock, bound);
        if (!has_running_lease(found)) return found;
        lock.release();
        const pg::Record& record = found.record;
        if (!bound.nap(*record.lease_end))
            refuse_in_flight(name.key, {std::nullopt, record.created, record.lease_end});
    }
}

// False when there was nothing, or somebody came first, past the key lock.
bool delete_record(const pg::KeyName& name, const pg::Found& found, const pg::WaitBound& bound) {
    if (found.presence == Presence::absent) return false;
    // Expired, and somebody deletes it: there is nothing to forget, whatever becomes of that.
    if (found.presence == Presence::deleting && !is_live(found)) return false;
    if (!found.in_snapshot && found.presence != Presence::own)
        report::serialization_failure(
            "The key's record was committed after this transaction's snapshot was taken.");
    const pg::Records records = pg::Records::to_write();
    const pg::Writing writing = pg::delete_record(records, found, bound);
    records.close();
    check_written(name.key, writing);
    return writing.written == pg::Written::yes && is_live(found);
}

bool forget(const pg::KeyName& name, const pg::WaitBound& bound) {
    const pg::Claim* mine = pg::find_claim(name.digest);
    if (mine != nullptr && mine->phase == pg::Phase::open)
        report::claimed_by_this_transaction(name.key,
                                            "Release the claim with idem.release(), or call "
                                            "idem.forget() in another transaction after this one "
                                            "has ended.");
    pg::KeyLock lock(name.digest);
    const bool forgotten = delete_record(name, at_rest(name, lock, bound), bound);
    lock.release();
    return forgotten;
}

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
