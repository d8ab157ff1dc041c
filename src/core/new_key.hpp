// How keys are made: a new one from time and chance, or one that is computed.
#pragma once

#include "core/digest.hpp"

namespace idem::core {

// UUIDv7 (RFC 9562): the key for whoever has none.
//
// 48 bits of milliseconds since 1970, 12 bits of how far into the millisecond (the RFC's method 3),
// 62 random bits. Time and fraction together are counted as one number, ticks of 1/4096 ms, so that
// a generator stays in order by never handing out a tick twice.
// Pure functions; no allocation, nothing thrown.
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

// Keys that are computed rather than made up: the same input gives the same key.
//
// Every text goes in as its length in bytes (four of them, big-endian) and its UTF-8; the lengths
// keep ('a', 'bc') from ('ab', 'c'), and '' from no part. The key is lower-case hexadecimal.
// Not thread-safe (see sha256.hpp, hmac.hpp); nothing is thrown.
using KeyText = std::array<char, 64>;

// SHA-256, the same everywhere. The parts are UTF-8, below 4 GB each. False when OpenSSL refuses to
// work; out is then undefined.
[[nodiscard]] bool derive_key(std::span<const std::string_view> parts, KeyText& out) noexcept;

// HMAC-SHA-256 over the key digest and the step, for the eyes of others: it gives away neither the
// seed nor the digest. The seed keys more than this, so the message begins with what it is for.
// False when OpenSSL refuses to work; out is then undefined.
[[nodiscard]] bool child_key(const Secret& seed, const Digest& digest, std::string_view step,
                             KeyText& out) noexcept;

}  // namespace idem::core
