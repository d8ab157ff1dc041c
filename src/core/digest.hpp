// The key digest: 128 bits that stand for (scope, tenant, key) in the record table's primary key.
//
// Unkeyed SHA-256 over the scope's id, the tenant and the key in UTF-8, each with its big-endian
// length, cut to 128 bits: the same identity gives the same digest in every database, so a restored
// record is found again. For a key that carries its time (UUIDv7, ULID) the leading 48 bits are
// that time, which keeps new entries at the right edge of the index.
//
// A digest only finds the record; the full identity in the row decides.
// Not thread-safe (see sha256.hpp); nothing is thrown.
#pragma once

#include "core/bytes.hpp"

namespace idem::core {

using Digest = std::array<std::byte, 16>;

struct Identity {
    std::int64_t scope_id;
    std::string_view tenant;  // UTF-8, '' when unused
    std::string_view key;     // UTF-8
};

// False when OpenSSL refuses to work, or tenant and key together exceed 2 KB; out is then
// undefined.
[[nodiscard]] bool key_digest(const Identity& identity, Digest& out) noexcept;

// The same for the source of an ordered stream, which is named like a key and never meets one.
[[nodiscard]] bool source_digest(const Identity& source, Digest& out) noexcept;

}  // namespace idem::core
