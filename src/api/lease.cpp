// idem.renew() and idem.checkpoint(): keeping a leased claim, and marking how far it has come.
//
// Both commit durably, as the claim did: the caller goes on outside the database relying on them.
#include "api/arguments.hpp"
#include "api/holding.hpp"
#include "api/stored_size.hpp"
#include "core/key.hpp"
#include "pg/duration.hpp"
#include "pg/report.hpp"

namespace idem::api {
namespace {

void check_name(std::string_view name) {
    if (name.empty() || name.size() > core::max_key_bytes)
        pg::report::invalid_argument("name", "The name must have 1 to 255 bytes.");
}

TimestampTz renew(const Holding& holding, std::int64_t lease) {
    pg::Record record = holding.record;
    record.lease_end = GetCurrentTimestamp() + lease;
    record.expires = expires_after(holding.record, *record.lease_end);
    update(holding, record);
    pg::commit_durably();
    return *record.lease_end;
}

void checkpoint(const Holding& holding, std::string_view name, Jsonb* state) {
    pg::Record record = holding.record;
    record.recovery_point = pg::text_of(name);
    record.recovery_state = state;
    update(holding, record);
    pg::commit_durably();
}

}  // namespace
}  // namespace idem::api

IDEM_FUNCTION(idem_renew) {
    using namespace idem;
    api::require_writable("idem.renew()", api::read_by_lookup);
    const auto lease = pg::positive_duration_arg(fcinfo, 1, "lease");
    const api::Holding holding = api::hold_leased(pg::text_arg(fcinfo, 0), "renew");
    PG_RETURN_TIMESTAMPTZ(api::renew(holding, lease.value_or(holding.scope->lease)));
}

IDEM_FUNCTION(idem_checkpoint) {
    using namespace idem;
    api::require_writable("idem.checkpoint()", api::read_by_lookup);
    const auto name = pg::text_arg(fcinfo, 1);
    if (!name) pg::report::missing_argument("name");
    api::check_name(*name);
    Jsonb* state = pg::jsonb_arg(fcinfo, 2);
    api::check_stored_size("recovery state", {state});
    const api::Holding holding = api::hold_leased(pg::text_arg(fcinfo, 0), "checkpoint");
    api::checkpoint(holding, *name, state);
    PG_RETURN_VOID();
}
