// idem.forget() deletes the record of one key, idem.forget_tenant() those of a tenant with its
// watermarks; idem.purge() does what the worker does. PUBLIC may not execute any of them: a role
// that only uses a scope cannot erase the scope's history.
//
// forget() waits for a running lease as a claim does, without a lock. It deletes under the key lock
// and releases the lock in the same call (change_record() in api/locked_key).
#include "api/arguments.hpp"
#include "api/locked_key.hpp"
#include "api/stream.hpp"
#include "api/tenant.hpp"
#include "pg/report.hpp"
#include "pg/sweep.hpp"
#include "pg/watermark.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;

enum Argument { arg_scope, arg_key, arg_tenant, arg_force };

constexpr const char* forget_call = "idem.forget()";

// An operation that is to be continued from its recovery point is not forgotten by mistake.
void check_abandoned(std::string_view key, const pg::Found& found) {
    const pg::Record& record = found.record;
    if (is_live(found) && record.state == core::State::in_progress &&
        record.recovery_point != nullptr)
        report::resumable(key, pg::view_of(record.recovery_point), forget_call);
}

bool forget(const pg::Scope& scope, pg::KeyName name, bool force, const pg::WaitBound& bound) {
    return change_record(name, forget_call, Lease::waits, bound, [&](const pg::Found& found) {
        if (!force) check_abandoned(name.key, found);
        const bool forgotten = delete_record(name, found, bound);
        if (forgotten)
            report::log_transition(report::Transition::removal, scope.name, name.tenant, name.key,
                                   found.record.attempt);
        return forgotten;
    });
}

// The watermarks say how far the tenant's streams have come.
std::int64_t forget_tenant(const TenantCall& call, const pg::WaitBound& bound) {
    const std::int64_t forgotten = change_each_record(
        call, Rows::deleted,
        [&](const pg::KeyName& name) { return forget(*call.scope, name, call.force, bound); });
    const List* sources = pg::sources_of(call.scope->id, call.tenant);
    for (int i = 0; i < list_length(sources); ++i)
        (void)reset_stream(*static_cast<const pg::KeyName*>(list_nth(sources, i)), std::nullopt,
                           bound);
    return forgotten;
}

constexpr std::int32_t default_max_records = 10'000;

}  // namespace
}  // namespace idem::api

IDEM_FUNCTION(idem_forget) {
    using namespace idem;
    api::require_writable(api::forget_call);
    const bool force = api::force_arg(fcinfo, api::arg_force);
    const auto key = api::checked_key(pg::text_arg(fcinfo, api::arg_key));
    const auto tenant = api::checked_tenant(pg::text_arg(fcinfo, api::arg_tenant));
    const pg::Scope& scope = pg::usable_scope(pg::text_arg(fcinfo, api::arg_scope), "forget");
    const pg::KeyName name = api::key_name(scope, tenant, key);
    const bool forgotten = api::forget(scope, name, force, pg::WaitBound(scope.wait));
    if (!forgotten) api::require_tenant(scope, name.tenant);
    PG_RETURN_BOOL(forgotten);
}

IDEM_FUNCTION(idem_forget_tenant) {
    using namespace idem;
    api::require_writable("idem.forget_tenant()");
    const api::TenantCall call = api::read_tenant_call(fcinfo, "forget_tenant", api::Rows::deleted);
    PG_RETURN_INT64(api::forget_tenant(call, pg::WaitBound(call.scope->wait)));
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
    if (swept.subscribed) pg::report::nothing_purged_on_subscriber();
    PG_RETURN_INT64(swept.deleted + swept.erased);
}
