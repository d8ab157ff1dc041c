// The limit of new claims per minute: a token bucket, implemented as GCRA (the generic cell rate
// algorithm).
//
// A limit of N per minute admits N claims at once and then one every 60/N seconds. A bucket stores
// one time, GCRA's theoretical arrival time: when the bucket will be full again if no claim comes.
// 60/N seconds are rarely whole microseconds, so the bucket also stores a fraction, in N-ths of a
// microsecond. Nothing is rounded, and exactly N claims per minute are admitted. Clock readings may
// arrive slightly out of order.
//
// The caller locks a bucket that is shared.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/duration.hpp"

namespace idem::core {

struct Bucket {
    std::int64_t arrival = std::numeric_limits<std::int64_t>::min();  // microseconds
    std::int32_t fraction = 0;                                        // plus N-ths of one
    std::int32_t per_minute = 1;                                      // the N above
};

// When the bucket is full again: it can then be dropped, because a new one is the same.
constexpr std::int64_t idle_from(const Bucket& bucket) noexcept {
    return bucket.arrival + (bucket.fraction > 0 ? 1 : 0);
}
constexpr bool is_idle(const Bucket& bucket, std::int64_t now) noexcept {
    return idle_from(bucket) <= now;
}

// Corrects the bucket after the clock was set back. The arrival time is never more than a minute
// ahead, so one that is more than two minutes ahead belongs to the old time. The bucket then counts
// as empty, which costs the tenant at most one minute.
constexpr void cap_arrival(Bucket& bucket, std::int64_t now) noexcept {
    const auto ahead = static_cast<std::uint64_t>(bucket.arrival) - static_cast<std::uint64_t>(now);
    if (bucket.arrival <= now || ahead <= 2 * static_cast<std::uint64_t>(usecs_per_minute)) return;
    bucket = {now + usecs_per_minute, 0, bucket.per_minute};
}

// Takes a token out of the bucket for a claim. Returns 0 when the claim is admitted. Otherwise it
// returns the wait in microseconds, and leaves the bucket as it was: the claim will be admitted at
// now + wait if no other claim comes first. per_minute is at least 1.
constexpr std::int64_t charge(Bucket& bucket, std::int32_t per_minute, std::int64_t now) noexcept {
    // No clock shows such a time. This keeps the sums below from overflowing.
    now = std::min(now, std::numeric_limits<std::int64_t>::max() - 4 * usecs_per_minute);
    cap_arrival(bucket, now);
    Bucket next = bucket;
    // The limit has changed: the bucket is as full as before, in proportion.
    if (next.per_minute != per_minute) next = {idle_from(next), 0, per_minute};
    if (is_idle(next, now)) next = {now, 0, per_minute};
    const std::int64_t fraction = std::int64_t{next.fraction} + usecs_per_minute % per_minute;
    const bool carry = fraction >= per_minute;
    next.arrival += usecs_per_minute / per_minute + (carry ? 1 : 0);
    next.fraction = static_cast<std::int32_t>(carry ? fraction - per_minute : fraction);

    const std::int64_t wait = idle_from(next) - (now + usecs_per_minute);
    if (wait > 0) return wait;
    bucket = next;
    return 0;
}

}  // namespace idem::core
