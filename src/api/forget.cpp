// idem.forget() deletes the record of one key; idem.purge() deletes expired records. PUBLIC may not
// execute either: a role that only uses a scope cannot erase the scope's history.
//
// forget() waits for a running lease as a claim does, without a lock. It deletes under the key lock
// and releases the lock in the same call (change_record() in api/locked_key).
#include "api/arguments.hpp"
#include "api/locked_key.hpp"
#include "pg/report.hpp"
#include "pg/sweep.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;
using core::Presence;

enum Argument { arg_scope, arg_key, arg_tenant, arg_force };

constexpr const char* forget_call = "idem.forget()";

// An operation that is to be continued from its recovery point is not forgotten by mistake.
void check_abandoned(std::string_view key, const pg::Found& found) {
    const pg::Record& record = found.record;
    if (is_live(found) && record.state == core::State::in_progress &&
        record.recovery_point != nullptr)
        report::resumable(key, pg::view_of(record.recovery_point), forget_call);
}

// False if there was no live record, or if a writer that bypassed the key lock deleted it first.
bool delete_record(const pg::KeyName& name, const pg::Found& found, const pg::WaitBound& bound) {
    // An expired row that is being deleted counts as none, whether or not the deletion commits.
    if (found.presence == Presence::deleting && !is_live(found)) return false;
    check_in_snapshot(found);
    const pg::Records records = pg::Records::to_write();
    const pg::WriteResult writing = pg::delete_record(records, found, bound);
    records.close();
    check_written(name.key, writing);
    return writing.outcome == pg::WriteOutcome::written && is_live(found);
}

bool forget(const pg::KeyName& name, bool force, const pg::WaitBound& bound) {
    return change_record(name, forget_call, Lease::waits, bound, [&](const pg::Found& found) {
        if (!force) check_abandoned(name.key, found);
        return delete_record(name, found, bound);
    });
}

constexpr std::int32_t default_max_records = 10'000;

}  // namespace
}  // namespace idem::api

// Up to 0.2.0 the function had no force and forgot every operation.
IDEM_FUNCTION(idem_forget_0_3) {
    using namespace idem;
    api::require_writable(api::forget_call);
    const bool force = PG_NARGS() <= api::arg_force || api::force_arg(fcinfo, api::arg_force);
    const auto key = api::checked_key(pg::text_arg(fcinfo, api::arg_key));
    const auto tenant = api::checked_tenant(pg::text_arg(fcinfo, api::arg_tenant));
    const pg::Scope& scope = pg::usable_scope(pg::text_arg(fcinfo, api::arg_scope), "forget");
    PG_RETURN_BOOL(
        api::forget(api::key_name(scope, tenant, key), force, pg::WaitBound(scope.wait)));
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
