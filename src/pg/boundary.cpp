#include "pg/boundary.hpp"

#include "core/duration.hpp"
#include "pg/compat.hpp"
#include "pg/report.hpp"

namespace idem::pg {

void check_columns(int found, int expected) {
    if (found == expected) return;
    ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                    errmsg("library and SQL objects of extension \"idem\" do not match"),
                    errdetail("A result type has %d columns instead of %d.", found, expected),
                    errhint("Run ALTER EXTENSION idem UPDATE.")));
}

constexpr const char* example = "Pass an interval such as '30 seconds'.";

std::int64_t duration(const char* name, const Interval& interval) {
    const auto usecs = compat::is_finite(interval)
                           ? core::fixed_duration(interval.month, interval.day, interval.time)
                           : std::nullopt;
    if (!usecs)
        report::invalid_argument(name, "The interval must be finite and at most 365000 days.",
                                 example);
    return *usecs;
}

std::int64_t positive_duration(const char* name, const Interval& interval) {
    const std::int64_t usecs = duration(name, interval);
    if (usecs <= 0)
        report::invalid_argument(name, "The interval must be longer than zero.", example);
    return usecs;
}

std::int64_t nonnegative_duration(const char* name, const Interval& interval) {
    const std::int64_t usecs = duration(name, interval);
    if (usecs < 0) report::invalid_argument(name, "The interval must not be negative.", example);
    return usecs;
}

std::optional<std::int64_t> positive_duration_arg(FunctionCallInfo fcinfo, int n,
                                                  const char* name) {
    const Interval* interval = interval_arg(fcinfo, n);
    return interval == nullptr ? std::nullopt : std::optional(positive_duration(name, *interval));
}

std::optional<std::int64_t> nonnegative_duration_arg(FunctionCallInfo fcinfo, int n,
                                                     const char* name) {
    const Interval* interval = interval_arg(fcinfo, n);
    return interval == nullptr ? std::nullopt
                               : std::optional(nonnegative_duration(name, *interval));
}

Interval* interval_of(std::int64_t usecs) {
    auto* interval = static_cast<Interval*>(palloc0(sizeof(Interval)));
    interval->time = usecs;
    return interval;
}

}  // namespace idem::pg
