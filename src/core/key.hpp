// The length limits of idempotency keys, which keys are UUIDs or weak, the time that some contain,
// and how idem makes keys of the current time and random bits.
//
// A key is opaque: it is compared byte for byte and never normalized. Only its length is checked
// here; the server checks its encoding. UUIDv7 and ULID keys begin with the time at which the
// client made them, in milliseconds since 1970.
#pragma once

#include <optional>

#include "core/bytes.hpp"

namespace idem::core {

inline constexpr std::size_t max_key_bytes = 255;
inline constexpr std::size_t max_tenant_bytes = 255;
inline constexpr std::size_t max_scope_bytes = 63;

using Uuid = std::array<std::byte, 16>;
using UuidText = std::array<char, 36>;

// The bytes of a key that is a UUID in canonical form: lower case, with hyphens. Nothing for any
// other key, even if it is a UUID in another form: from the bytes, uuid_text() makes exactly this
// key again.
std::optional<Uuid> canonical_uuid(std::string_view key) noexcept;
UuidText uuid_text(const Uuid& uuid) noexcept;

// The 48-bit time of a UUIDv7 (with hyphens) or of a ULID, in either case; nothing for any other
// key, including a UUID of another version. The time decides where in the index the record lies
// (see digest.hpp) and how old the key is. A key that only looks like a ULID is still valid, with
// that time.
std::optional<std::uint64_t> embedded_time(std::string_view key) noexcept;

inline constexpr std::int64_t future_tolerance = 600'000'000;  // microseconds: 10 minutes

// Whether the time in the key, if it has one, is longer ago than the TTL, so that its record may
// have expired already; or in the future by more than the tolerance, so that its age would be
// underestimated. now in microseconds since 1970, ttl in microseconds.
bool is_stale(std::string_view key, std::int64_t now, std::int64_t ttl) noexcept;

// Weak keys, which are likely to be used again for a different operation (core/weakness.cpp).
//
// A good key is either random and long (a UUID, a ULID) or names one operation ('order-4711'). A
// key that is only a number, only a time, very short or repetitive is neither: another client, or
// the same client after a restart, is likely to send it again. A generic key is what a faulty
// client sends for every operation: a constant, or what its language prints for a missing value.
// Only the form of a key can be checked, so a key that is not weak is not necessarily good. Lengths
// are in bytes, not characters.
//
// Empty if the key is not weak, or else:
// 'generic': a missing value, a general word, an unfilled placeholder, the nil or max UUID
// 'timestamp': the time since 1970 in seconds or smaller units, or an ISO 8601 date or time
// 'number': decimal digits that a 64-bit counter could reach, leading zeros aside
// 'short': fewer than 8 bytes, unless it is letters and a number, such as 'o-7'
// 'repetitive': at most two different bytes, or fewer than one different byte in eight
std::string_view weakness(std::string_view key) noexcept;

// ---- New keys -----------------------------------------------------------------------------------

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

}  // namespace idem::core
