// The digest inside a leased token, enciphered.
//
// A leased token is looked up in the record table. If its digest stood there in clear, whoever can
// compute a key's digest could make up a token for it, and learn from how long the refusal takes
// whether the key exists. Enciphered under a secret key, a made-up token leads to no row at all.
// Not thread-safe; nothing is thrown.
#pragma once

#include "core/aes_block.hpp"
#include "core/digest.hpp"

namespace idem::core {

using SealKey = AesKey;

// False when OpenSSL refuses to work; out is then undefined.
[[nodiscard]] bool seal(const SealKey& key, const Digest& digest, Digest& out) noexcept;
[[nodiscard]] bool unseal(const SealKey& key, const Digest& sealed, Digest& out) noexcept;

}  // namespace idem::core
