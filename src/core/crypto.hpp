// SHA-256, HMAC-SHA-256 and one block of AES-128, by OpenSSL.
#pragma once

#include "core/bytes.hpp"

struct evp_mac_ctx_st;     // OpenSSL's EVP_MAC_CTX
struct evp_cipher_ctx_st;  // OpenSSL's EVP_CIPHER_CTX

namespace idem::core {

// SHA-256, a piece at a time.
//
// One digest at a time in a process: constructing one starts over, so a digest that was never
// finished leaves nothing behind. OpenSSL's algorithm is fetched once per process; not thread-safe;
// nothing is thrown.
using Hash = std::array<std::byte, 32>;

class Sha256 {
  public:
    Sha256() noexcept;
    void write(Bytes bytes) noexcept;
    // False when OpenSSL refuses to work; out is then undefined.
    [[nodiscard]] bool finish(Hash& out) noexcept;

  private:
    bool good_;
};

// HMAC-SHA-256, a piece at a time.
//
// Keying costs more than a short message, so whoever needs codes keeps one of these for good: the
// key is expanded again only when it changes. One code at a time: start() begins anew, so one that
// was never finished leaves nothing behind. Not thread-safe; nothing is thrown.
using Secret = std::array<std::byte, 32>;

class Hmac {
  public:
    [[nodiscard]] bool start(const Secret& secret) noexcept;
    void write(Bytes bytes) noexcept;
    // False when OpenSSL has refused to work since start(); out is then undefined.
    [[nodiscard]] bool finish(Hash& out) noexcept;

  private:
    bool key_with(const Secret& secret) noexcept;

    evp_mac_ctx_st* context_ = nullptr;  // lives as long as the process
    Secret keyed_with_{};
    bool keyed_ = false;
    bool good_ = false;
};

// One AES-128 block under a key that seldom changes.
//
// A keyed permutation of exactly a digest's width: what it makes of a digest tells nothing about
// the digest to whoever lacks the key. Expanding a key costs more than the block, so each use keeps
// its own expanded key. Not thread-safe; OpenSSL's objects live as long as the process; nothing is
// thrown.
using AesKey = std::array<std::byte, 16>;
using AesBlock = std::array<std::byte, 16>;

class BlockCipher {
  public:
    enum class Direction : int { decrypt = 0, encrypt = 1 };
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
