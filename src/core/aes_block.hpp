// One AES-128 block under a key that seldom changes.
//
// A keyed permutation of exactly a digest's width: what it makes of a digest tells nothing about
// the digest to whoever lacks the key. Expanding a key costs more than the block, so each use keeps
// its own expanded key. Not thread-safe; OpenSSL's objects live as long as the process; nothing is
// thrown.
#pragma once

#include "core/bytes.hpp"

struct evp_cipher_ctx_st;

namespace idem::core {

using AesKey = std::array<std::byte, 16>;
using AesBlock = std::array<std::byte, 16>;

class BlockCipher {
  public:
    enum class Direction : int { decipher = 0, encipher = 1 };
    explicit constexpr BlockCipher(Direction direction) noexcept : direction_(direction) {}

    // False when OpenSSL refuses to work; out is then undefined.
    [[nodiscard]] bool apply(const AesKey& key, const AesBlock& in, AesBlock& out) noexcept;

  private:
    bool ready(const AesKey& key) noexcept;

    Direction direction_;
    evp_cipher_ctx_st* context_ = nullptr;
    AesKey key_{};
    bool keyed_ = false;
};

}  // namespace idem::core
