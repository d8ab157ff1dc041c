// The length limits of idempotency keys, those that are UUIDs, and the time that some keys contain.
//
// A key is opaque: it is compared byte for byte and never normalized. Only its length is checked
// here; the server checks its encoding. UUIDv7 and ULID keys begin with the time at which the
// client made them, in milliseconds since 1970.
//
// Pure functions; no allocation, no exceptions.
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

// The age of a key, compared with the TTL of its record.
enum class KeyAge {
    unknown,  // the key contains no time
    current,
    stale,        // older than the TTL: its record may have expired already
    from_future,  // by more than the tolerance: its age would be underestimated
};

inline constexpr std::int64_t future_tolerance = 600'000'000;  // microseconds: 10 minutes

// now in microseconds since 1970, ttl in microseconds.
KeyAge key_age(std::string_view key, std::int64_t now, std::int64_t ttl) noexcept;

}  // namespace idem::core
