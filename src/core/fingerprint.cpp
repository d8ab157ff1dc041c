#include "core/fingerprint.hpp"

#include <openssl/crypto.h>

#include <algorithm>

namespace idem::core {
namespace {

// Kept for good, because the secret seldom changes.
constinit Hmac hmac;

}  // namespace

StoredFingerprint pack(const Fingerprint& fingerprint) noexcept {
    StoredFingerprint out{};
    out[0] = static_cast<std::byte>(fingerprint.version);
    const auto id = big_endian<4>(fingerprint.secret_id);
    std::copy(id.begin(), id.end(), out.begin() + 1);
    std::copy(fingerprint.mac.begin(), fingerprint.mac.end(), out.begin() + 5);
    return out;
}

bool unpack(Bytes stored, Fingerprint& out) noexcept {
    if (stored.size() != StoredFingerprint{}.size()) return false;
    out.version = std::to_integer<std::uint8_t>(stored[0]);
    out.secret_id = static_cast<std::uint32_t>(from_big_endian(stored.subspan(1, 4)));
    std::copy(stored.begin() + 5, stored.end(), out.mac.begin());
    return out.version == fingerprint_version;
}

bool same_mac(const Fingerprint& a, const Fingerprint& b) noexcept {
    return CRYPTO_memcmp(a.mac.data(), b.mac.data(), a.mac.size()) == 0;
}

bool FingerprintSink::begin(const Secret& secret, std::uint32_t secret_id) noexcept {
    used_ = 0;
    secret_id_ = secret_id;
    return hmac.start(secret);
}

void FingerprintSink::write(Bytes bytes) noexcept {
    if (bytes.size() > buffer_.size() - used_) flush();
    if (bytes.size() > buffer_.size()) {
        hmac.write(bytes);
        return;
    }
    std::copy(bytes.begin(), bytes.end(), buffer_.begin() + static_cast<std::ptrdiff_t>(used_));
    used_ += bytes.size();
}

void FingerprintSink::flush() noexcept {
    hmac.write(Bytes(buffer_).first(used_));
    used_ = 0;
}

bool FingerprintSink::finish(Fingerprint& out) noexcept {
    flush();
    out.version = fingerprint_version;
    out.secret_id = secret_id_;
    return hmac.finish(out.mac);
}

}  // namespace idem::core
