// idem.forget(): deletes the record of one key, so that the operation may run again. A role that
// merely uses a scope cannot erase its history: EXECUTE is not PUBLIC's.
//
// The record is deleted under the key lock, which is freed in the same call: until the transaction
// ends, others find a row that is being deleted, and wait for it. So a transaction may forget any
// number of keys without filling the lock table.
#include "api/arguments.hpp"
#include "api/settled.hpp"
#include "core/duration.hpp"
#include "pg/open_claims.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;
using core::Presence;

enum Argument { arg_scope, arg_key, arg_tenant };

// Whoever works under a lease is at it, though no transaction tells.
void refuse_running_lease(const pg::KeyName& name, const pg::Record& record) {
    const TimestampTz now = GetCurrentTimestamp();
    if (record.state != core::State::in_progress || record.lease_end.value_or(0) <= now) return;
    report::in_progress(name.key, {std::nullopt, record.created, record.lease_end},
                        core::retry_after(now - record.created, *record.lease_end - now),
                        report::Bound::nothing);
}

bool is_live(const pg::Found& found) {
    return found.presence == Presence::own || found.record.expires > GetCurrentTimestamp();
}

// False when there was nothing, or somebody came first, past the key lock.
bool delete_record(const pg::KeyName& name, const pg::Found& found) {
    if (found.presence == Presence::absent) return false;
    if (!found.in_snapshot && found.presence != Presence::own)
        report::serialization_failure(
            "The key was completed by a transaction that this one's snapshot cannot see.");
    refuse_running_lease(name, found.record);
    const pg::Records records = pg::Records::to_write();
    const bool deleted = pg::delete_record(records, found);
    records.close();
    return deleted && is_live(found);
}

bool forget(const pg::KeyName& name, std::int64_t wait) {
    const pg::Claim* mine = pg::find_claim(name.digest);
    if (mine != nullptr && mine->phase == pg::Phase::open)
        report::claimed_by_this_transaction(name.key,
                                            "Release the claim with idem.release(), or call "
                                            "idem.forget() in a transaction of its own "
                                            "when this one has ended.");
    pg::KeyLock lock(name.digest);
    const bool forgotten = delete_record(name, settled(name, lock, wait));
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
    PG_RETURN_BOOL(api::forget(api::key_name(scope, tenant, key), scope.wait));
}
