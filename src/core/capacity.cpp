#include "core/capacity.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/duration.hpp"

namespace idem::core {

std::optional<std::int64_t> records_needed(double claims_per_second, std::int64_t ttl,
                                           double margin) noexcept {
    const double seconds = static_cast<double>(ttl) / static_cast<double>(usecs_per_second);
    const double product = claims_per_second * seconds * (1 + margin);
    // 100 * 1.1 is slightly more than 110 in binary. An excess within the rounding error of the
    // arguments and the operations must not be rounded up to another record.
    constexpr double error = 4 * std::numeric_limits<double>::epsilon();
    const double records = std::ceil(product - product * error);
    if (!(records < 0x1p63)) return std::nullopt;  // or not a number: infinity minus infinity
    return static_cast<std::int64_t>(records);
}

double collision_probability(std::int64_t records, std::int32_t entropy_bits) noexcept {
    if (records < 2) return 0;
    const double pairs = static_cast<double>(records) * static_cast<double>(records - 1) / 2;
    return std::min(1.0, std::ldexp(pairs, -entropy_bits));
}

}  // namespace idem::core
