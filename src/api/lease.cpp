// idem.renew() and idem.checkpoint(): extend a leased claim, and store how far its operation got.
//
// Both commit durably, as the claim did: the caller relies on them when it goes on outside the
// database.
#include "api/arguments.hpp"
#include "api/finish.hpp"
#include "api/locked_key.hpp"
#include "core/key.hpp"
#include "pg/boundary.hpp"
#include "pg/report.hpp"

namespace idem::api {
namespace {

void check_name(std::string_view name) {
    if (name.empty() || name.size() > core::max_key_bytes)
        pg::report::invalid_argument(
            "name", "The name must have 1 to 255 bytes.",
            "Pass a short name of the step that is done, such as 'charged'.");
}

TimestampTz renew(const LeasedClaim& leased, std::int64_t lease) {
    pg::Record record = leased.record();
    record.lease_end = GetCurrentTimestamp() + lease;
    record.expires = expires_after(leased.record(), *record.lease_end);
    update_record(leased, record);
    pg::commit_durably();
    return *record.lease_end;
}

void checkpoint(const LeasedClaim& leased, std::string_view name, Jsonb* state) {
    pg::Record record = leased.record();
    record.recovery_point = pg::text_of(name);
    record.recovery_state = state;
    check_unfinished_size("recovery state", *leased.scope, record);
    update_record(leased, record);
    pg::commit_durably();
}

}  // namespace
}  // namespace idem::api

IDEM_FUNCTION(idem_renew) {
    using namespace idem;
    api::require_writable("idem.renew()", api::read_by_lookup);
    const auto lease = pg::positive_duration_arg(fcinfo, 1, "lease");
    const api::LeasedClaim leased = api::lock_leased_claim(pg::text_arg(fcinfo, 0), "renew");
    PG_RETURN_TIMESTAMPTZ(api::renew(leased, lease.value_or(leased.scope->lease)));
}

IDEM_FUNCTION(idem_checkpoint) {
    using namespace idem;
    api::require_writable("idem.checkpoint()", api::read_by_lookup);
    const auto name = pg::text_arg(fcinfo, 1);
    if (!name) pg::report::missing_argument("name");
    api::check_name(*name);
    Jsonb* state = pg::jsonb_arg(fcinfo, 2);
    const api::LeasedClaim leased = api::lock_leased_claim(pg::text_arg(fcinfo, 0), "checkpoint");
    api::checkpoint(leased, *name, state);
    PG_RETURN_VOID();
}
