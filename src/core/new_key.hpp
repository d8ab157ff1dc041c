// How idem makes keys: from the current time and random bits (UUIDv7), or for a step of an
// operation.
#pragma once

#include "core/digest.hpp"
#include "core/key.hpp"

namespace idem::core {

// A UUIDv7 (RFC 9562) has 48 bits for the milliseconds since 1970, 12 bits for the fraction of the
// millisecond (method 3 of the RFC) and 62 random bits. Time and fraction are handled as one number
// of ticks of 1/4096 ms. A generator that never uses a tick twice produces UUIDs in order.

// The tick of a time in microseconds since 1970. An earlier time counts as 1970.
constexpr std::uint64_t uuid_tick(std::int64_t unix_usecs) noexcept {
    const auto usecs = static_cast<std::uint64_t>(unix_usecs < 0 ? 0 : unix_usecs);
    return usecs / 1000 << 12 | usecs % 1000 * 4096 / 1000;
}

// The same, but always greater than the last tick: two calls may come within one tick, and the
// clock may have been set back.
constexpr std::uint64_t next_uuid_tick(std::uint64_t last, std::int64_t unix_usecs) noexcept {
    const std::uint64_t tick = uuid_tick(unix_usecs);
    return tick > last ? tick : last + 1;
}

// In lower case, with hyphens. Uses the low 60 bits of tick and the low 62 bits of random.
UuidText uuid_v7(std::uint64_t tick, std::uint64_t random) noexcept;

// The key for a step of an operation: HMAC-SHA-256 of the operation's digest and the step, in
// lower-case hexadecimal. Every text is preceded by its length in bytes, as four big-endian bytes.
// Such keys are sent to other services, so they must reveal neither the seed nor the digest. The
// seed has other uses, too: the message begins with the name of this one. False when OpenSSL fails;
// out is then undefined.
using KeyText = std::array<char, 64>;
[[nodiscard]] bool child_key(const Secret& seed, const Digest& digest, std::string_view step,
                             KeyText& out) noexcept;

}  // namespace idem::core
