// The pace of purging: how often to purge a database, how many records to delete at once, and when
// not to purge at all.
//
// The more a run of the worker finds to delete, the sooner the next one comes. This bounds the
// number of live records that are read per deleted record. Records expire by the wall clock. When
// it has jumped, purging is skipped for a round, because it may jump back.
//
// Durations are in microseconds.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/duration.hpp"

namespace idem::core {

// What a run found. `more` means that it ended before it had read the whole table.
struct PurgeCounts {
    std::int64_t seen;
    std::int64_t deleted;
    bool more;
};

// The shortest and the longest delay between two runs in a database. An idle database may fill up
// at any time, so even the longest delay is only five times naptime.
constexpr std::int64_t shortest_delay(std::int64_t naptime) noexcept {
    return std::max<std::int64_t>(naptime / 10, 10'000);
}
constexpr std::int64_t longest_delay(std::int64_t naptime) noexcept {
    return std::max<std::int64_t>(naptime, 10'000) * 5;
}

constexpr std::int64_t doubled(std::int64_t delay, std::int64_t least, std::int64_t most) noexcept {
    return std::clamp(std::clamp<std::int64_t>(delay, 0, max_duration) * 2, least, most);
}

// For a database without the extension, or where the run failed: there may be hundreds of them, so
// delays grow six times as long.
constexpr std::int64_t absent_delay(std::int64_t delay, std::int64_t naptime) noexcept {
    return doubled(delay, shortest_delay(naptime), 6 * longest_delay(naptime));
}

// The delay gets shorter when at least a quarter of the records had expired, and longer when at
// most a tenth had. So a run reads four to ten records per deletion, which costs a small part of
// what the claim of that record did. More frequent runs would cost more reads, less frequent ones
// more disk space.
constexpr std::int64_t next_delay(std::int64_t delay, std::int64_t naptime,
                                  const PurgeCounts& found) noexcept {
    const std::int64_t least = shortest_delay(naptime);
    if (found.deleted > 0 && found.deleted >= found.seen / 4)
        return found.more ? least : std::clamp(delay / 2, least, longest_delay(naptime));
    if (found.deleted <= found.seen / 10) return doubled(delay, least, longest_delay(naptime));
    return std::clamp(delay, least, longest_delay(naptime));
}

// How long to wait when no background worker slot is free.
constexpr std::int64_t back_off(std::int64_t previous) noexcept {
    return std::clamp(previous * 2, usecs_per_second, 60 * usecs_per_second);
}

// The number of records that one transaction deletes: a claim of one of them may have to wait for
// that transaction. The rate is in records per second; 0 means no limit.
inline constexpr std::int32_t max_batch_records = 1000;
constexpr std::int32_t batch_records(std::int32_t rate) noexcept {
    if (rate <= 0) return max_batch_records;
    return std::clamp(rate / 10, 1, max_batch_records);
}

// How long to pause after a batch that took `took`, so as to keep to the rate.
constexpr std::int64_t batch_delay(std::int64_t deleted, std::int32_t rate,
                                   std::int64_t took) noexcept {
    if (rate <= 0) return 0;
    return std::max<std::int64_t>(deleted * usecs_per_second / rate - took, 0);
}

// Two clocks, read at the same moment: the time of day, and a clock that is never set.
struct Clocks {
    std::int64_t wall;
    std::int64_t steady;
};

// How far the wall clock was set forward between two readings; negative when it was set back.
constexpr std::int64_t jump(const Clocks& before, const Clocks& now) noexcept {
    return (now.wall - before.wall) - (now.steady - before.steady);
}

// Whether the wall clock was not set. Slewing, at half a millisecond per second at most, is
// allowed.
constexpr bool agree(const Clocks& before, const Clocks& now) noexcept {
    const std::int64_t by = jump(before, now);
    return by > -usecs_per_second && by < usecs_per_second;
}

}  // namespace idem::core
