// Sizing: how long keys must be remembered, how many records that makes, how unlikely two of them
// meet.
//
// Pure functions; no allocation, nothing thrown.
#pragma once

#include <cstdint>
#include <optional>

namespace idem::core {

// How long after its first try a retry may still arrive: all that can lie in between, added up.
// Microseconds; each part from 0 to max_duration (see duration.hpp), so the sum cannot overflow.
constexpr std::int64_t retention_window(std::int64_t caller_deadline, std::int64_t retry_horizon,
                                        std::int64_t network_delay,
                                        std::int64_t clock_skew) noexcept {
    return caller_deadline + retry_horizon + network_delay + clock_skew;
}

// The records alive at a time, with a margin (0.2 is a fifth more), rounded up. ttl in
// microseconds; all finite and not negative. Nothing when it is beyond 2^63.
std::optional<std::int64_t> records_needed(double claims_per_second, std::int64_t ttl,
                                           double margin) noexcept;

// The chance that any two of so many random values of so many bits are the same, at most 1:
// n(n-1) / (2 * 2^bits). Neither argument is negative. Tiny results keep their precision.
double collision_probability(std::int64_t records, std::int32_t entropy_bits) noexcept;

}  // namespace idem::core
