// The rate of new claims: a token bucket, kept as GCRA keeps it.
//
// A bucket is one time, the theoretical arrival time: when it would be full again if nobody came. A
// limit of N a minute admits N at once and then one every 60/N seconds. Those are rarely whole
// microseconds, so the bucket keeps the fraction too, as a count of N-ths: nothing is rounded, and
// exactly N a minute get through, for ever. Clock readings that arrive a little out of order are as
// good as in order.
// Pure functions; nothing thrown. Whoever shares a bucket locks it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/duration.hpp"

namespace idem::core {

struct Bucket {
    std::int64_t arrival = std::numeric_limits<std::int64_t>::min();  // microseconds
    std::int32_t fraction = 0;                                        // and N-ths of one more
    std::int32_t per_minute = 1;                                      // the N of that fraction
};

// A bucket that is full again says nothing: a new one would be the same.
constexpr bool is_idle(const Bucket& bucket, std::int64_t now) noexcept {
    return bucket.arrival < now || (bucket.arrival == now && bucket.fraction == 0);
}

// No bucket is ever filled further than a minute ahead, so a time two minutes ahead means that the
// clock was set back. The bucket then counts as empty: that costs a tenant a minute at most.
constexpr void cap_arrival(Bucket& bucket, std::int64_t now) noexcept {
    const auto ahead = static_cast<std::uint64_t>(bucket.arrival) - static_cast<std::uint64_t>(now);
    if (bucket.arrival <= now || ahead <= 2 * static_cast<std::uint64_t>(usecs_per_minute)) return;
    bucket.arrival = now + usecs_per_minute;
    bucket.fraction = 0;
}

// Takes one claim out of the bucket. Returns 0 when it is admitted, otherwise how long to wait, in
// microseconds: at now + wait it is admitted, if nobody comes in between. A refusal costs nothing.
// per_minute is at least 1.
constexpr std::int64_t charge(Bucket& bucket, std::int32_t per_minute, std::int64_t now) noexcept {
    // No clock reads this; it only keeps the sums below in range.
    now = std::min(now, std::numeric_limits<std::int64_t>::max() - 4 * usecs_per_minute);
    cap_arrival(bucket, now);
    Bucket next = bucket;
    // The limit was changed: what is in the bucket stays in the same proportion.
    if (next.per_minute != per_minute) {
        if (next.fraction > 0) ++next.arrival;
        next.fraction = 0;
        next.per_minute = per_minute;
    }
    if (is_idle(next, now)) {
        next.arrival = now;
        next.fraction = 0;
    }
    const std::int64_t fraction = std::int64_t{next.fraction} + usecs_per_minute % per_minute;
    const bool carry = fraction >= per_minute;
    next.arrival += usecs_per_minute / per_minute + (carry ? 1 : 0);
    next.fraction = static_cast<std::int32_t>(carry ? fraction - per_minute : fraction);

    const std::int64_t latest = now + usecs_per_minute;
    const std::int64_t wait = next.arrival - latest + (next.fraction > 0 ? 1 : 0);
    if (wait > 0) return wait;
    bucket = next;
    return 0;
}

}  // namespace idem::core
