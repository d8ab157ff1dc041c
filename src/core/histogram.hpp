// Histograms of durations: their buckets, and what they tell about quantiles.
//
// The upper bounds are powers of two of a microsecond, so that one set of buckets serves operations
// that take microseconds and operations that take days, and finding the bucket takes a few
// instructions. A bound is within its bucket. The last bucket has none. Counts are exact; a
// quantile is known up to a factor of two.
//
// Pure functions; durations are in microseconds; no allocation, no exceptions.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace idem::core {

// Up to 2^38 microseconds, which is three days, and one more.
inline constexpr std::size_t bounded_buckets = 39;
inline constexpr std::size_t bucket_count = bounded_buckets + 1;

using BucketCounts = std::array<std::int64_t, bucket_count>;

constexpr std::int64_t upper_bound(std::size_t bucket) noexcept {
    return std::int64_t{1} << bucket;
}

// The first bucket whose bound the duration does not exceed. A clock that was set back makes
// durations below zero, which belong to the first bucket.
constexpr std::size_t bucket_of(std::int64_t duration) noexcept {
    if (duration <= 1) return 0;
    const auto bits = std::bit_width(static_cast<std::uint64_t>(duration - 1));
    return std::min(static_cast<std::size_t>(bits), bounded_buckets);
}

constexpr std::int64_t count_of(const BucketCounts& counts) noexcept {
    std::int64_t sum = 0;
    for (const std::int64_t n : counts) sum += n;
    return sum;
}

// The lowest bound that at least this part of the durations does not exceed. Nothing if there are
// no durations, or if no bound is high enough.
constexpr std::optional<std::int64_t> quantile(const BucketCounts& counts, int percent) noexcept {
    const std::int64_t all = count_of(counts);
    std::int64_t within = 0;
    for (std::size_t i = 0; all > 0 && i < bounded_buckets; ++i) {
        within += counts[i];
        if (within * 100 >= all * percent) return upper_bound(i);
    }
    return std::nullopt;
}

}  // namespace idem::core
