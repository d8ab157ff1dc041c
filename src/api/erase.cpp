// idem.erase() removes what a record holds beside the key and the outcome, idem.erase_tenant() does
// so for all records of a tenant. The record stays, so that a retry never runs the operation again.
// PUBLIC may not execute either.
//
// The row is replaced under the key lock, which is released in the same call (change_record() in
// api/locked_key). A lease is waited for, as idem.forget() does.
#include "api/arguments.hpp"
#include "api/locked_key.hpp"
#include "api/tenant.hpp"
#include "pg/boundary.hpp"
#include "pg/report.hpp"

namespace idem::api {
namespace {

enum Argument { arg_scope, arg_key, arg_tenant, arg_force };
enum TenantArgument { tenant_scope, tenant_tenant, tenant_force };

constexpr const char* erase_call = "idem.erase()";

bool is_needed(const pg::Record& record) {
    return record.state == core::State::in_progress &&
           (record.request != nullptr || record.recovery_state != nullptr);
}

bool differs(const pg::Record& rest, const pg::Record& record) {
    return rest.headers != record.headers || rest.response != record.response ||
           rest.body != record.body || rest.error != record.error ||
           rest.request != record.request || rest.recovery_state != record.recovery_state ||
           rest.fingerprint != record.fingerprint;
}

// An expired record is of no use, so nothing of it is kept.
bool erase(const pg::Scope& scope, pg::KeyName name, bool force, const pg::WaitBound& bound) {
    return change_record(name, erase_call, Lease::waits, bound, [&](const pg::Found& found) {
        if (!is_live(found)) return delete_record(name, found, bound);
        if (!force && is_needed(found.record)) pg::report::needed_to_continue(name.key);
        const pg::Record rest = pg::erased(found.record);
        if (!differs(rest, found.record)) return true;
        replace_record(name, found, rest, bound);
        pg::report::log_transition(pg::report::Transition::erasure, scope.name, name.tenant,
                                   name.key, found.record.attempt);
        return true;
    });
}

std::int64_t erase_tenant(const TenantCall& call, const pg::WaitBound& bound) {
    return change_each_record(
        call, [&](const pg::KeyName& name) { return erase(*call.scope, name, call.force, bound); });
}

}  // namespace

TenantCall read_tenant_call(FunctionCallInfo fcinfo, const char* function) {
    const auto tenant = pg::text_arg(fcinfo, tenant_tenant);
    if (!tenant) pg::report::missing_argument("tenant");
    const bool force = force_arg(fcinfo, tenant_force);
    const pg::Scope& scope = pg::usable_scope(pg::text_arg(fcinfo, tenant_scope), function);
    return {&scope, tenant_in(scope, checked_tenant(tenant)), force};
}

}  // namespace idem::api

IDEM_FUNCTION(idem_erase) {
    using namespace idem;
    api::require_writable(api::erase_call);
    const auto key = api::checked_key(pg::text_arg(fcinfo, api::arg_key));
    const auto tenant = api::checked_tenant(pg::text_arg(fcinfo, api::arg_tenant));
    const bool force = api::force_arg(fcinfo, api::arg_force);
    const pg::Scope& scope = pg::usable_scope(pg::text_arg(fcinfo, api::arg_scope), "erase");
    const pg::KeyName name = api::key_name(scope, tenant, key);
    const bool erased = api::erase(scope, name, force, pg::WaitBound(scope.wait));
    if (!erased) api::require_tenant(scope, name.tenant);
    PG_RETURN_BOOL(erased);
}

IDEM_FUNCTION(idem_erase_tenant) {
    using namespace idem;
    api::require_writable("idem.erase_tenant()");
    const api::TenantCall call = api::read_tenant_call(fcinfo, "erase_tenant");
    PG_RETURN_INT64(api::erase_tenant(call, pg::WaitBound(call.scope->wait)));
}
