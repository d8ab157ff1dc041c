// The 64 bits under which a key is locked.
//
// pg_locks shows them to everybody, so they are derived from the digest with a secret seed: one
// AES-128 block. Two keys that meet in 64 bits only wait for each other; which record is meant is
// never decided by the lock. Not thread-safe; nothing is thrown.
#pragma once

#include "core/aes_block.hpp"
#include "core/digest.hpp"

namespace idem::core {

using LockSeed = AesKey;

// False when OpenSSL refuses to work; out is then undefined.
[[nodiscard]] bool lock_id(const LockSeed& seed, const Digest& digest, std::uint64_t& out) noexcept;

}  // namespace idem::core
