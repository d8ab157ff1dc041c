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

#include "core/crypto.hpp"

namespace idem::core {

using Digest = std::array<std::byte, 16>;

struct QualifiedKey {
    std::int64_t scope_id;
    std::string_view tenant;  // UTF-8, '' when unused
    std::string_view key;     // UTF-8
};

// False when OpenSSL refuses to work, or tenant and key together exceed 2 KB; out is then
// undefined.
[[nodiscard]] bool key_digest(const QualifiedKey& key, Digest& out) noexcept;

// The same for the source of an ordered stream, which is named like a key and never meets one.
[[nodiscard]] bool source_digest(const QualifiedKey& source, Digest& out) noexcept;

// The 64 bits under which a key is locked.
//
// pg_locks shows them to everybody, so they are derived from the digest with a secret seed: one
// AES-128 block. Two keys that meet in 64 bits only wait for each other; which record is meant is
// never decided by the lock. Not thread-safe; nothing is thrown.
using LockSeed = AesKey;

// False when OpenSSL refuses to work; out is then undefined.
[[nodiscard]] bool lock_id(const LockSeed& seed, const Digest& digest, std::uint64_t& out) noexcept;

// The digest inside a leased token, enciphered.
//
// A leased token is looked up in the record table. If its digest stood there in clear, whoever can
// compute a key's digest could make up a token for it, and learn from how long the refusal takes
// whether the key exists. Enciphered under a secret key, a made-up token leads to no row at all.
// Not thread-safe; nothing is thrown.
using SealKey = AesKey;

// False when OpenSSL refuses to work; out is then undefined.
[[nodiscard]] bool seal(const SealKey& key, const Digest& digest, Digest& out) noexcept;
[[nodiscard]] bool unseal(const SealKey& key, const Digest& sealed, Digest& out) noexcept;

}  // namespace idem::core
