// HMAC-SHA-256, a piece at a time.
//
// Keying costs more than a short message, so whoever needs codes keeps one of these for good: the
// key is expanded again only when it changes. One code at a time: start() begins anew, so one that
// was never finished leaves nothing behind. Not thread-safe; nothing is thrown.
#pragma once

#include "core/sha256.hpp"

struct evp_mac_ctx_st;  // OpenSSL's EVP_MAC_CTX

namespace idem::core {

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

}  // namespace idem::core
