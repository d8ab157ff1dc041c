// Lengths of time: PostgreSQL's three-part intervals as fixed microseconds, and how far they go.
//
// A TTL or a wait is compared with a clock, so a day is 24 hours and a month 30 days.
// Pure functions; nothing thrown.
#pragma once

#include <cstdint>
#include <optional>

namespace idem::core {

inline constexpr std::int64_t usecs_per_second = 1'000'000;
inline constexpr std::int64_t usecs_per_minute = 60 * usecs_per_second;
inline constexpr std::int64_t usecs_per_day = 86'400 * usecs_per_second;
// Far beyond any retry, and small enough that adding it to a timestamp cannot overflow.
inline constexpr std::int64_t max_duration = 1000 * 365 * usecs_per_day;

// Nothing when the sum leaves [-max_duration, max_duration].
constexpr std::optional<std::int64_t> fixed_duration(std::int32_t months, std::int32_t days,
                                                     std::int64_t usecs) noexcept {
    // Neither product comes near 2^63: |months| and |days| are below 2^31.
    const std::int64_t whole_days = std::int64_t{months} * 30 + days;
    constexpr std::int64_t limit = max_duration / usecs_per_day;
    const auto within = [](std::int64_t v, std::int64_t most) { return v >= -most && v <= most; };
    // Opposite signs may cancel out, so each part may be twice the limit before the sum is judged.
    if (!within(whole_days, 2 * limit) || !within(usecs, 2 * max_duration)) return std::nullopt;
    const std::int64_t sum = whole_days * usecs_per_day + usecs;
    if (!within(sum, max_duration)) return std::nullopt;
    return sum;
}

// When to come back for a key whose owner started `age` ago and is still at it: about as long
// again, within reason. Microseconds.
constexpr std::int64_t retry_after(std::int64_t age) noexcept {
    constexpr std::int64_t least = usecs_per_second / 10;
    constexpr std::int64_t most = 10 * usecs_per_second;
    return age < least ? least : age > most ? most : age;
}

// The same for a leased operation, which may be taken over once its lease is over.
constexpr std::int64_t retry_after(std::int64_t age, std::int64_t lease_left) noexcept {
    const std::int64_t guess = retry_after(age);
    if (lease_left >= guess) return guess;
    return lease_left > 0 ? lease_left : 0;
}

}  // namespace idem::core
