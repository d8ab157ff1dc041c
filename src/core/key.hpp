// The shape rules of an idempotency key, and the time that some keys carry.
//
// A key is opaque: it is compared byte for byte and never normalised. Only its length is judged
// here; encoding is the server's concern. UUIDv7 and ULID keys begin with the milliseconds since
// 1970 at which the client made them; the digest keeps them in front (see digest.hpp).
// Pure functions; no allocation, nothing thrown.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace idem::core {

inline constexpr std::size_t max_key_bytes = 255;
inline constexpr std::size_t max_tenant_bytes = 255;
inline constexpr std::size_t max_scope_bytes = 63;

enum class KeyShape { good, empty, too_long };

constexpr KeyShape key_shape(std::string_view key) noexcept {
    if (key.empty()) return KeyShape::empty;
    if (key.size() > max_key_bytes) return KeyShape::too_long;
    return KeyShape::good;
}

// The 48-bit millisecond time of a UUIDv7 (with its hyphens, either case) or of a ULID (either
// case); nothing for any other key. A key that merely looks like one is not harmed by it: the time
// only decides where in the index the record lies.
std::optional<std::uint64_t> embedded_time(std::string_view key) noexcept;

// How far from now a client made the key, against how long it would be remembered.
enum class KeyAge {
    unknown,  // the key carries no time
    current,
    stale,        // older than the TTL: what became of it may be forgotten already
    from_future,  // by more than the tolerance: its age will be underestimated
};

inline constexpr std::int64_t future_tolerance = 600'000'000;  // microseconds: 10 minutes

// now in microseconds since 1970, ttl in microseconds.
KeyAge key_age(std::string_view key, std::int64_t now, std::int64_t ttl) noexcept;

}  // namespace idem::core
