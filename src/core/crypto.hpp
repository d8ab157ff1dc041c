// The cryptographic primitives that idem uses: SHA-256, HMAC-SHA-256 and one block of AES-128.
//
// OpenSSL computes them. Its objects are created on first use and kept until the process exits.
// Every function that can fail returns false when OpenSSL does; its output is then undefined.
//
// Not thread-safe; no exceptions.
#pragma once

#include "core/bytes.hpp"

struct evp_mac_ctx_st;     // OpenSSL's EVP_MAC_CTX
struct evp_cipher_ctx_st;  // OpenSSL's EVP_CIPHER_CTX

namespace idem::core {

using Hash = std::array<std::byte, 32>;

// SHA-256 of a message that is written in pieces.
//
// A process computes one hash at a time: the constructor abandons any unfinished one.
class Sha256 {
  public:
    Sha256() noexcept;
    void write(Bytes bytes) noexcept;
    // False when OpenSSL has failed since construction.
    [[nodiscard]] bool finish(Hash& out) noexcept;

  private:
    bool good_;
};

using Secret = std::array<std::byte, 32>;

// HMAC-SHA-256 of a message that is written in pieces.
//
// Setting the key costs more than hashing a short message. Keep an object for each use of it: it
// sets the key only when the key changes. start() abandons any unfinished message.
class Hmac {
  public:
    [[nodiscard]] bool start(const Secret& secret) noexcept;
    void write(Bytes bytes) noexcept;
    // False when OpenSSL has failed since start().
    [[nodiscard]] bool finish(Hash& out) noexcept;

  private:
    bool key_with(const Secret& secret) noexcept;

    evp_mac_ctx_st* context_ = nullptr;  // never freed
    Secret keyed_with_{};
    bool keyed_ = false;
    bool good_ = false;
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
