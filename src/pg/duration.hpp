// Interval arguments as fixed microseconds, judged.
#pragma once

#include "pg/server.hpp"

namespace idem::pg {

// Raises 22023 unless the interval is finite and of at most 365000 days. name is the
// argument's, for the message.
std::int64_t duration(const char* name, const Interval& interval);
std::int64_t positive_duration(const char* name, const Interval& interval);
std::int64_t nonnegative_duration(const char* name, const Interval& interval);

// The same for an argument that may be NULL.
std::optional<std::int64_t> positive_duration_arg(FunctionCallInfo fcinfo, int n, const char* name);
std::optional<std::int64_t> nonnegative_duration_arg(FunctionCallInfo fcinfo, int n,
                                                     const char* name);

// Microseconds as an interval of nothing but time.
Interval* interval_of(std::int64_t usecs);

}  // namespace idem::pg
