// The fingerprint of a request: what tells a retry from a different request under the same key.
//
// HMAC-SHA-256 over the canonical form of the request, keyed with a per-database secret, so that a
// leaked table does not give low-entropy requests away. It is stored with the version of this
// algorithm and the id of the secret; a record is always compared under what it was made with.
// One computation at a time: begin() starts over, so a walk that was cut short by an error leaves
// nothing behind. Not thread-safe; allocates and throws nothing.
#pragma once

#include "core/crypto.hpp"

namespace idem::core {

inline constexpr std::uint8_t fingerprint_version = 1;

struct Fingerprint {
    std::uint8_t version;
    std::uint32_t secret_id;
    Hash mac;
};

// As stored: version, secret id, mac.
using StoredFingerprint = std::array<std::byte, 1 + 4 + 32>;
StoredFingerprint pack(const Fingerprint& fingerprint) noexcept;
// False when the bytes are not a fingerprint of a version this library knows.
[[nodiscard]] bool unpack(Bytes stored, Fingerprint& out) noexcept;

// In constant time.
bool same_mac(const Fingerprint& a, const Fingerprint& b) noexcept;

// The Sink of a canonical walk. It buffers, so that a small request is one call into OpenSSL.
class FingerprintSink {
  public:
    [[nodiscard]] bool begin(const Secret& secret, std::uint32_t secret_id) noexcept;
    void write(Bytes bytes) noexcept;
    [[nodiscard]] bool finish(Fingerprint& out) noexcept;

  private:
    void flush() noexcept;

    std::array<std::byte, 512> buffer_;
    std::size_t used_ = 0;
    std::uint32_t secret_id_ = 0;
};

}  // namespace idem::core
