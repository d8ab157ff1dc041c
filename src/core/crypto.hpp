// The cryptographic primitives that idem uses: SHA-256, HMAC-SHA-256 and one block of AES-128.
//
// OpenSSL computes them. Its objects are created on first use and kept until the process exits.
// Every function that can fail returns false when OpenSSL does; its output is then undefined.
//
// Not thread-safe.
#pragma once

#include <openssl/sha.h>

#include <algorithm>

#include "core/bytes.hpp"

struct evp_cipher_ctx_st;  // OpenSSL's EVP_CIPHER_CTX

namespace idem::core {

using Hash = std::array<std::byte, 32>;

// SHA-256 of a message that is written in pieces. They are buffered, so that a short message takes
// one call into OpenSSL.
class Sha256 {
  public:
    Sha256() noexcept;
    // Inline, so that the many pieces of one and four bytes become single stores.
    void write(Bytes bytes) noexcept {
        if (bytes.size() > buffer_.size() - used_) return write_beyond(bytes);
        std::copy(bytes.begin(), bytes.end(), buffer_.begin() + static_cast<std::ptrdiff_t>(used_));
        used_ += bytes.size();
    }
    // False when OpenSSL has failed since construction.
    [[nodiscard]] bool finish(Hash& out) noexcept;

  private:
    friend class Hmac;
    // Continues the message that has led to this state.
    explicit Sha256(const SHA256_CTX& begun) noexcept;
    void write_beyond(Bytes bytes) noexcept;
    void hash(Bytes bytes) noexcept;

    SHA256_CTX state_;
    std::array<std::byte, 512> buffer_;
    std::size_t used_ = 0;
    bool good_;
};

using Secret = std::array<std::byte, 32>;

// HMAC-SHA-256 of a message that is written in pieces, as with Sha256.
//
// Setting a key costs more than hashing a short message, so the process remembers the last one.
class Hmac {
  public:
    explicit Hmac(const Secret& secret) noexcept;
    void write(Bytes bytes) noexcept { inner_.write(bytes); }
    [[nodiscard]] bool finish(Hash& out) noexcept;

  private:
    Sha256 inner_;
};

using AesKey = std::array<std::byte, 16>;
using AesBlock = std::array<std::byte, 16>;

// AES-128 of a single block: a permutation of 128-bit values that needs the key to be computed or
// reversed.
//
// Setting the key costs more than encrypting a block. Keep an object for each use and direction: it
// sets the key only when the key changes.
class BlockCipher {
  public:
    enum class Direction : int { decrypt = 0, encrypt = 1 };
    explicit constexpr BlockCipher(Direction direction) noexcept : direction_(direction) {}

    [[nodiscard]] bool apply(const AesKey& key, const AesBlock& in, AesBlock& out) noexcept;

  private:
    bool ready(const AesKey& key) noexcept;

    Direction direction_;
    evp_cipher_ctx_st* context_ = nullptr;  // never freed
    AesKey key_{};
    bool keyed_ = false;
};

}  // namespace idem::core
