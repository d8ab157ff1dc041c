// How often, how much and whether to purge.
//
// A database is visited again soon while visits find much to delete, and ever more rarely while
// they find little: each deleted record pays for the live ones that were read to find it. Whoever
// finds the clocks at odds skips a round: records expire by the wall clock, and one that has just
// jumped may jump back. Pure functions over microseconds; nothing thrown.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/duration.hpp"

namespace idem::core {

// What a visit found. more: it was cut off before it had seen the whole table.
struct VisitResult {
    std::int64_t seen;
    std::int64_t deleted;
    bool more;
};

// The shortest and the longest nap between two visits to one database. An idle one may fill up at
// any time, so it is never forgotten for long.
constexpr std::int64_t shortest_nap(std::int64_t naptime) noexcept {
    return std::max<std::int64_t>(naptime / 10, 10'000);
}
constexpr std::int64_t longest_nap(std::int64_t naptime) noexcept {
    return std::max<std::int64_t>(naptime, 10'000) * 5;
}

constexpr std::int64_t doubled(std::int64_t nap, std::int64_t least, std::int64_t most) noexcept {
    return std::clamp(std::clamp<std::int64_t>(nap, 0, max_duration) * 2, least, most);
}

// Where the extension is not installed: there may be hundreds of these.
constexpr std::int64_t absent_nap(std::int64_t nap, std::int64_t naptime) noexcept {
    return doubled(nap, shortest_nap(naptime), 6 * longest_nap(naptime));
}

// A quarter expired is much, a tenth little. So a visit reads four to ten records for one that it
// deletes, which costs a small part of what claiming it did; to come sooner would cost more of
// that, to come later more space.
constexpr std::int64_t next_nap(std::int64_t nap, std::int64_t naptime,
                                const VisitResult& found) noexcept {
    const std::int64_t least = shortest_nap(naptime);
    if (found.deleted > 0 && found.deleted >= found.seen / 4)
        return found.more ? least : std::clamp(nap / 2, least, longest_nap(naptime));
    if (found.deleted <= found.seen / 10) return doubled(nap, least, longest_nap(naptime));
    return std::clamp(nap, least, longest_nap(naptime));
}

// How long to leave off when there is no worker to be had.
constexpr std::int64_t back_off(std::int64_t previous) noexcept {
    return std::clamp(previous * 2, usecs_per_second, 60 * usecs_per_second);
}

// One commit covers at most so many records, so that a claim of one of them waits for no longer.
// rate is in records per second; 0: no bound.
inline constexpr std::int32_t max_batch_records = 1000;
constexpr std::int32_t batch_records(std::int32_t rate) noexcept {
    if (rate <= 0) return max_batch_records;
    return std::clamp(rate / 10, 1, max_batch_records);
}

// How long to rest after a batch, for the rate to be kept.
constexpr std::int64_t rest_after(std::int64_t deleted, std::int32_t rate,
                                  std::int64_t took) noexcept {
    if (rate <= 0) return 0;
    return std::max<std::int64_t>(deleted * usecs_per_second / rate - took, 0);
}

// Two readings of a moment: the time of day, and a clock that nobody sets.
struct Clocks {
    std::int64_t wall;
    std::int64_t steady;
};

// How far the time of day has gone beyond the time that has passed; negative: behind.
constexpr std::int64_t jump(const Clocks& before, const Clocks& now) noexcept {
    return (now.wall - before.wall) - (now.steady - before.steady);
}

// Slewing is no jump: it makes up half a millisecond a second at most.
constexpr bool agree(const Clocks& before, const Clocks& now) noexcept {
    const std::int64_t by = jump(before, now);
    return by > -usecs_per_second && by < usecs_per_second;
}

}  // namespace idem::core
