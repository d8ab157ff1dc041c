// The keys of a scope that are replayed, or used for another request, most often.
//
// A sketch of a fixed size, by the Space-Saving algorithm: each of its places counts one key. A key
// without a place takes the place of the key with the lowest count, and begins with that count,
// because so many of its own events may have been missed. So the key that gives its place up is
// never one of the frequent ones: with 32 places, a key with more than 1/32 of all events always
// has one. counted() leaves out what a key began with: it is how often the key was seen from
// first_seen on, at most the true number, and less than it by at most 1/32 of all events. There are
// half as many places for conflicts, because healthy clients have none.
//
// The sketch has no end, but clients change: a key that has not been seen for a day gives its place
// up before any other, however high its count is.
//
// Replays are too frequent to count each of them in the sketch. While a scope has had only a few,
// all are counted; of the later ones, each is counted with a chance of 1/16, for sixteen. For n
// true events beyond the few, the standard error is the root of 15 n: 4 % of 10,000, 12 % of 1,000.
//
// Pure functions; no allocation, no exceptions. The caller locks a sketch that is shared.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/digest.hpp"
#include "core/duration.hpp"

namespace idem::core {

struct HotKey {
    Digest digest;
    std::int64_t count;       // at least the true number of events, but for the sampling
    std::int64_t before;      // the part of it that the key did not earn itself
    std::int64_t first_seen;  // microseconds; the first and the last event that were counted
    std::int64_t last_seen;
};

constexpr std::int64_t counted(const HotKey& key) noexcept {
    return key.count - key.before;
}

inline constexpr std::size_t replay_places = 32;
inline constexpr std::size_t conflict_places = 16;
inline constexpr std::int64_t forgotten_after = usecs_per_day;

template <std::size_t Places>
struct HotKeys {
    std::uint32_t used;  // the places from here on are free
    std::array<HotKey, Places> keys;
};

// Counts events of a key. weight is at least 1.
void count_hot_key(std::span<HotKey> places, std::uint32_t& used, const Digest& digest,
                   std::int64_t weight, std::int64_t now) noexcept;

template <std::size_t Places>
void count_hot_key(HotKeys<Places>& sketch, const Digest& digest, std::int64_t weight,
                   std::int64_t now) noexcept {
    count_hot_key(sketch.keys, sketch.used, digest, weight, now);
}

inline constexpr std::uint64_t counted_each = 1000;
inline constexpr std::uint32_t sampled_share = 16;

// For how many replays the nth one of its scope, from 0 on, counts; 0 if it is left out. A random
// choice: clients that take turns would otherwise be counted for each other.
constexpr std::int64_t replay_weight(std::uint64_t nth, std::uint32_t random) noexcept {
    if (nth < counted_each) return 1;
    return random % sampled_share == 0 ? sampled_share : 0;
}

}  // namespace idem::core
