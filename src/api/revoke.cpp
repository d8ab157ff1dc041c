// idem.revoke() takes a leased operation away from its holder, so that the next claim can go on
// from the recovery point at once. PUBLIC may not execute it.
//
// The row stays, with its request, attempt, recovery point and last error, and without a nonce:
// this fences the holder's token off. The lease, or the time until a retry, ends now. revoke()
// waits for a transaction that is changing the row, within the scope's wait, but not for the lease.
#include "api/arguments.hpp"
#include "api/locked_key.hpp"
#include "core/decision.hpp"
#include "pg/boundary.hpp"
#include "pg/report.hpp"

namespace idem::api {
namespace {

enum Argument { arg_scope, arg_key, arg_tenant };

constexpr const char* revoke_call = "idem.revoke()";

// If the attempts are used up, the next claim is granted one more.
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
bool revoke(pg::KeyName name, const pg::Scope& scope) {
    const pg::WaitBound bound(scope.wait);
    bool live = false;
    const auto change = [&](const pg::Found& found) {
        live = is_live(found);
        if (!live || found.record.state != core::State::in_progress) return false;
        replace_record(name, found, revoked(found.record, scope), bound);
        pg::wake_at_commit(pg::scope_event(name.scope_id));
        pg::report::log_transition(pg::report::Transition::revocation, scope.name, name.tenant,
                                   name.key, found.record.attempt);
        return true;
    };
    const bool changed = change_record(name, revoke_call, Lease::is_cut, bound, change);
    if (!live) require_tenant(scope, name.tenant);
    return changed;
}

}  // namespace
}  // namespace idem::api

IDEM_FUNCTION(idem_revoke) {
    using namespace idem;
    api::require_writable(api::revoke_call);
    const auto key = api::checked_key(pg::text_arg(fcinfo, api::arg_key));
    const auto tenant = api::checked_tenant(pg::text_arg(fcinfo, api::arg_tenant));
    const pg::Scope& scope = pg::usable_scope(pg::text_arg(fcinfo, api::arg_scope), "revoke");
    PG_RETURN_BOOL(api::revoke(api::key_name(scope, tenant, key), scope));
}
