// idem.retention_window(), idem.records_needed() and idem.collision_probability(): how long to keep
// records, how many there are then, and how likely two random keys are equal. They only compute:
// immutable and parallel safe.
#include "core/capacity.hpp"

#include <cmath>

#include "pg/boundary.hpp"
#include "pg/report.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;

enum WindowArgument { arg_caller_deadline, arg_retry_horizon, arg_network_delay, arg_clock_skew };
enum RecordsArgument { arg_claims_per_second, arg_ttl, arg_margin };
enum CollisionArgument { arg_records, arg_entropy_bits };

std::int64_t checked_duration(FunctionCallInfo fcinfo, int n, const char* name) {
    const auto usecs = pg::nonnegative_duration_arg(fcinfo, n, name);
    if (!usecs) report::missing_argument(name);
    return *usecs;
}

double checked_number(FunctionCallInfo fcinfo, int n, const char* name) {
    const double value = PG_GETARG_FLOAT8(n);
    if (!std::isfinite(value) || value < 0)
        report::invalid_argument(name, "The number must be finite and not negative.");
    return value;
}

std::int64_t checked_records(FunctionCallInfo fcinfo) {
    if (PG_ARGISNULL(arg_records)) report::missing_argument("records");
    const std::int64_t records = PG_GETARG_INT64(arg_records);
    if (records < 0) report::invalid_argument("records", "The number must not be negative.");
    return records;
}

std::int32_t checked_bits(FunctionCallInfo fcinfo) {
    const auto bits = pg::int_arg(fcinfo, arg_entropy_bits);
    if (!bits) report::missing_argument("entropy_bits");
    if (*bits < 0) report::invalid_argument("entropy_bits", "The number must not be negative.");
    return *bits;
}

}  // namespace
}  // namespace idem::api

IDEM_FUNCTION(idem_retention_window) {
    using namespace idem;
    const auto deadline =
        api::checked_duration(fcinfo, api::arg_caller_deadline, "caller_deadline");
    const auto horizon = api::checked_duration(fcinfo, api::arg_retry_horizon, "retry_horizon");
    const auto delay = api::checked_duration(fcinfo, api::arg_network_delay, "network_delay");
    const auto skew = api::checked_duration(fcinfo, api::arg_clock_skew, "clock_skew");
    const std::int64_t window = core::retention_window(deadline, horizon, delay, skew);
    PG_RETURN_INTERVAL_P(pg::interval_of(window));
}

IDEM_FUNCTION(idem_records_needed) {
    using namespace idem;
    if (PG_ARGISNULL(api::arg_claims_per_second)) pg::report::missing_argument("claims_per_second");
    if (PG_ARGISNULL(api::arg_margin)) pg::report::null_argument("margin");
    const double rate =
        api::checked_number(fcinfo, api::arg_claims_per_second, "claims_per_second");
    const std::int64_t ttl = api::checked_duration(fcinfo, api::arg_ttl, "ttl");
    const double margin = api::checked_number(fcinfo, api::arg_margin, "margin");
    const auto records = core::records_needed(rate, ttl, margin);
    if (!records) pg::report::too_many_records();
    PG_RETURN_INT64(*records);
}

IDEM_FUNCTION(idem_collision_probability) {
    using namespace idem;
    const std::int64_t records = api::checked_records(fcinfo);
    const std::int32_t bits = api::checked_bits(fcinfo);
    PG_RETURN_FLOAT8(core::collision_probability(records, bits));
}
