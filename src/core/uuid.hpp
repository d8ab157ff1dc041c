// UUIDv7 (RFC 9562): the key for whoever has none.
//
// 48 bits of milliseconds since 1970, 12 bits of how far into the millisecond (the RFC's method 3),
// 62 random bits. Time and fraction together are counted as one number, ticks of 1/4096 ms, so that
// a generator stays in order by never handing out a tick twice.
// Pure functions; no allocation, nothing thrown.
#pragma once

#include <array>
#include <cstdint>

namespace idem::core {

using UuidText = std::array<char, 36>;

// The tick of this moment, in microseconds since 1970; a clock set before that counts as 1970.
constexpr std::uint64_t uuid_tick(std::int64_t unix_usecs) noexcept {
    const auto usecs = static_cast<std::uint64_t>(unix_usecs < 0 ? 0 : unix_usecs);
    return usecs / 1000 << 12 | usecs % 1000 * 4096 / 1000;
}

// As uuid_tick(), but after the one given out last: for calls within one tick, and for a clock that
// was set back.
constexpr std::uint64_t next_uuid_tick(std::uint64_t last, std::int64_t unix_usecs) noexcept {
    const std::uint64_t tick = uuid_tick(unix_usecs);
    return tick > last ? tick : last + 1;
}

// Lower case, with hyphens. Of tick the lower 60 bits count, of random the lower 62.
UuidText uuid_v7(std::uint64_t tick, std::uint64_t random) noexcept;

}  // namespace idem::core
