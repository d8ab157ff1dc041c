// Capacity planning: how long to keep records, how many there will be, and how likely it is that
// two random keys collide.
//
// Pure functions; no allocation, no exceptions.
#pragma once

#include <cstdint>
#include <optional>

namespace idem::core {

// How long after the first try the last retry can arrive: the sum of everything that can delay it.
// In microseconds. Each part is from 0 to max_duration (see duration.hpp), so the sum cannot
// overflow.
constexpr std::int64_t retention_window(std::int64_t caller_deadline, std::int64_t retry_horizon,
                                        std::int64_t network_delay,
                                        std::int64_t clock_skew) noexcept {
    return caller_deadline + retry_horizon + network_delay + clock_skew;
}

// The number of records that exist at a time, with a margin (0.2 adds 20 percent), rounded up. The
// TTL is in microseconds. All arguments are finite and not negative. Nothing when the result is
// 2^63 or more.
std::optional<std::int64_t> records_needed(double claims_per_second, std::int64_t ttl,
                                           double margin) noexcept;

// The probability that any two of n random values of that many bits are equal, by the birthday
// bound n(n-1) / (2 * 2^bits), at most 1. Neither argument is negative. Very small results are
// precise.
double collision_probability(std::int64_t records, std::int32_t entropy_bits) noexcept;

}  // namespace idem::core
