// idem.erase() removes what a record holds beside the key and the outcome, idem.erase_tenant() does
// so for all records of a tenant. The record stays, so that a retry never runs the operation again.
// PUBLIC may not execute either.
//
// The row is replaced under the key lock, which is released in the same call (change_record() in
// api/locked_key). A lease is waited for, as idem.forget() does.
#include "api/arguments.hpp"
#include "api/locked_key.hpp"
#include "api/tenant.hpp"
#include "core/duration.hpp"
#include "pg/boundary.hpp"
#include "pg/owner.hpp"
#include "pg/report.hpp"

namespace idem::api {
namespace {

enum Argument { arg_scope, arg_key, arg_tenant, arg_force };

constexpr const char* erase_call = "idem.erase()";

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
        pg::report::foreign_code(pg::qualified_name(RelationGetRelid(records.table())),
                                 pg::qualified_name(caller));
    pg::AsOwner owner(records.table());
    replace_record(name, found, rest, bound);
    owner.end();
    records.close();
}

// An expired record is of no use, so nothing of it is kept.
bool erase(std::string_view scope, pg::KeyName name, bool force, const pg::WaitBound& bound) {
    return change_record(name, erase_call, Lease::waits, bound, [&](const pg::Found& found) {
        if (!is_live(found)) return delete_record(name, found, bound);
        if (!force && is_needed(found.record)) pg::report::needed_to_continue(name.key);
        const pg::Record rest = pg::erased(found.record);
        if (!differs(rest, found.record)) return true;
        rewrite(name, found, rest, bound);
        pg::report::log_transition(pg::report::Transition::erasure, scope, name.tenant, name.key,
                                   found.record.attempt);
        return true;
    });
}

// Of a scope that is gone, records may remain until the purge deletes them.
constexpr std::int64_t wait_without_scope = 10 * core::usecs_per_second;

std::int64_t erase_tenant(const TenantCall& call) {
    return change_each_record(call, Rows::rewritten, [&](const pg::KeyName& name) {
        const pg::Scope* scope = pg::find_scope_by_id(name.scope_id);
        const pg::WaitBound bound(scope == nullptr ? wait_without_scope : scope->wait);
        return erase(scope == nullptr ? "" : pstrdup(scope->name), name, call.force, bound);
    });
}

}  // namespace

}  // namespace idem::api

IDEM_FUNCTION(idem_erase) {
    using namespace idem;
    api::require_writable(api::erase_call);
    const auto key = api::checked_key(pg::text_arg(fcinfo, api::arg_key));
    const auto tenant = api::checked_tenant(pg::text_arg(fcinfo, api::arg_tenant));
    const bool force = api::force_arg(fcinfo, api::arg_force);
    const pg::Scope& scope = pg::usable_scope(pg::text_arg(fcinfo, api::arg_scope), "erase");
    const pg::KeyName name = api::key_name(scope, tenant, key);
    const bool erased = api::erase(scope.name, name, force, pg::WaitBound(scope.wait));
    if (!erased) api::require_tenant(scope, name.tenant);
    PG_RETURN_BOOL(erased);
}

IDEM_FUNCTION(idem_erase_tenant) {
    using namespace idem;
    api::require_writable("idem.erase_tenant()");
    const api::TenantCall call =
        api::read_tenant_call(fcinfo, "erase_tenant", api::Rows::rewritten);
    PG_RETURN_INT64(api::erase_tenant(call));
}
