// The key digest, and what is derived from it: the lock id, the sealed digest and child keys.
//
// The digest is 128 bits that stand for scope, tenant and key in the record table's primary key. It
// finds a record; the scope id, tenant and key in the row then decide whether it is the right one.
//
// Every function here returns false when OpenSSL fails; its output is then undefined.
#pragma once

#include "core/crypto.hpp"

namespace idem::core {

using Digest = std::array<std::byte, 16>;

// A key is unique within its scope and tenant.
struct QualifiedKey {
    std::int64_t scope_id;
    std::string_view tenant;  // UTF-8, '' when unused
    std::string_view key;     // UTF-8
};

// The first 128 bits of SHA-256 over the scope id, the tenant and the key, each text preceded by
// its length. No secret is involved, so the digest is the same in every database, and a restored
// record is found again. The digest of a key that contains a time (a UUIDv7 or a ULID) begins with
// the 48 bits of that time, so that new entries go to the right edge of the index.
[[nodiscard]] bool key_digest(const QualifiedKey& key, Digest& out) noexcept;

// The same for a source of an ordered stream, without the time. A source and a key of the same name
// have different digests.
[[nodiscard]] bool source_digest(const QualifiedKey& source, Digest& out) noexcept;

using LockSeed = AesKey;

// The 64-bit id of the lock on a key: the digest is encrypted with a secret seed, and the first
// half of the result is the id. Every user can see lock ids in pg_locks; without the seed, an id
// does not give the key away. Two keys with the same id only wait for each other: the lock never
// decides which record is meant.
[[nodiscard]] bool lock_id(const LockSeed& seed, const Digest& digest, std::uint64_t& out) noexcept;

using SealKey = AesKey;

// Encrypts a digest for use in a leased token, and decrypts it again.
//
// A leased token is looked up in the record table by its digest. Anyone can compute the digest of a
// key. If tokens contained it unencrypted, a caller could forge a token for any key, and learn from
// the time that the refusal takes whether the key exists. A forged token decrypts to a
// digest that no row has.
[[nodiscard]] bool seal(const SealKey& key, const Digest& digest, Digest& out) noexcept;
[[nodiscard]] bool unseal(const SealKey& key, const Digest& sealed, Digest& out) noexcept;

// The key for a step of an operation: HMAC-SHA-256 of the operation's digest and the step, in
// lower-case hexadecimal. Such keys are sent to other services, so they must reveal neither the
// seed nor the digest. The seed has other uses, too: the message begins with the name of this one.
using KeyText = std::array<char, 64>;
[[nodiscard]] bool child_key(const Secret& seed, const Digest& digest, std::string_view step,
                             KeyText& out) noexcept;

}  // namespace idem::core
