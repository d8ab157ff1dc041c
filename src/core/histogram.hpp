// The buckets of a histogram of durations. The view idem.durations computes quantiles of them.
//
// The upper bounds are powers of two of a microsecond, so that one set of buckets serves operations
// that take microseconds and operations that take days, and finding the bucket takes a few
// instructions. A bound is within its bucket. The last bucket has none.
//
// Pure functions; durations are in microseconds; no allocation, no exceptions.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace idem::core {

// Up to 2^38 microseconds, which is three days, and one more.
inline constexpr std::size_t bounded_buckets = 39;
inline constexpr std::size_t bucket_count = bounded_buckets + 1;

// The first bucket whose bound the duration does not exceed. A clock that was set back makes
// durations below zero, which belong to the first bucket.
constexpr std::size_t bucket_of(std::int64_t duration) noexcept {
    if (duration <= 1) return 0;
    const auto bits = std::bit_width(static_cast<std::uint64_t>(duration - 1));
    return std::min(static_cast<std::size_t>(bits), bounded_buckets);
}

}  // namespace idem::core
