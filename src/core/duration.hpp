// Durations: PostgreSQL's intervals as a fixed number of microseconds, their limits, how long a
// call may wait, and the buckets of histograms.
//
// An interval has months, days and microseconds. TTLs and waits are compared with a clock, so a day
// always has 24 hours here, and a month 30 days.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace idem::core {

inline constexpr std::int64_t usecs_per_second = 1'000'000;
inline constexpr std::int64_t usecs_per_minute = 60 * usecs_per_second;
inline constexpr std::int64_t usecs_per_day = 86'400 * usecs_per_second;
// 1,000 years: far longer than any retry, and adding it to a timestamp cannot overflow.
inline constexpr std::int64_t max_duration = 1000 * 365 * usecs_per_day;

// Nothing when the sum is outside [-max_duration, max_duration].
constexpr std::optional<std::int64_t> fixed_duration(std::int32_t months, std::int32_t days,
                                                     std::int64_t usecs) noexcept {
    // |months| and |days| are at most 2^31, so neither product comes near 2^63.
    const std::int64_t whole_days = std::int64_t{months} * 30 + days;
    constexpr std::int64_t limit = max_duration / usecs_per_day;
    const auto within = [](std::int64_t v, std::int64_t most) { return v >= -most && v <= most; };
    // Parts of opposite sign may cancel each other, so each may be up to twice the limit.
    if (!within(whole_days, 2 * limit) || !within(usecs, 2 * max_duration)) return std::nullopt;
    const std::int64_t sum = whole_days * usecs_per_day + usecs;
    if (!within(sum, max_duration)) return std::nullopt;
    return sum;
}

// How long to wait, in microseconds, before trying again to claim a key whose holder claimed it
// `age` ago and has not finished: as long again, between 0.1 and 10 seconds.
constexpr std::int64_t retry_after(std::int64_t age) noexcept {
    return std::clamp(age, usecs_per_second / 10, 10 * usecs_per_second);
}

// The same for a leased claim, which can be taken over when its lease ends.
constexpr std::int64_t retry_after(std::int64_t age, std::int64_t lease_left) noexcept {
    return std::clamp<std::int64_t>(lease_left, 0, retry_after(age));
}

// The same for an operation that has no attempts left: an administrator has to decide first.
inline constexpr std::int64_t retry_after_exhausted = 60 * usecs_per_second;

enum class WaitEnd : std::uint8_t { wait, lock_timeout, statement_timeout };

struct WaitLimit {
    std::int64_t duration;
    WaitEnd end;
};

// How long a call may wait: the least of its `wait`, the session's lock_timeout (0: none) and what
// is left of the statement's time, of which a tenth, and 50 ms at least, is kept for the answer.
constexpr WaitLimit wait_limit(std::int64_t wait, std::int64_t lock_timeout,
                               std::optional<std::int64_t> statement_left) noexcept {
    WaitLimit limit{wait, WaitEnd::wait};
    if (lock_timeout > 0 && lock_timeout <= wait) limit = {lock_timeout, WaitEnd::lock_timeout};
    if (!statement_left) return limit;
    const std::int64_t to_answer = std::max(*statement_left / 10, usecs_per_second / 20);
    const std::int64_t to_wait = std::max<std::int64_t>(*statement_left, to_answer) - to_answer;
    return to_wait < limit.duration ? WaitLimit{to_wait, WaitEnd::statement_timeout} : limit;
}

// The buckets of a histogram; the view idem.durations computes quantiles of them. Their upper
// bounds are powers of two of a microsecond, so that one set serves operations that take
// microseconds and operations that take days, and finding the bucket takes a few instructions. A
// bound is within its bucket. There are buckets up to 2^38 microseconds, which is three days, and
// one without a bound.
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
