#include "core/fingerprint.hpp"

#include <openssl/crypto.h>

#include <algorithm>
#include <bit>

namespace idem::core {
namespace {

// Kept for good, because the secret seldom changes.
constinit Hmac hmac;

constexpr std::size_t mac_bytes(FingerprintVersion version) noexcept {
    return version == FingerprintVersion::whole_mac ? Hash{}.size() : leading_mac_bytes;
}

constexpr std::size_t id_bytes(const Fingerprint& fingerprint) noexcept {
    if (fingerprint.version == FingerprintVersion::whole_mac) return 4;
    return std::max<std::size_t>(
        1, (static_cast<std::size_t>(std::bit_width(fingerprint.secret_id)) + 7) / 8);
}

}  // namespace

StoredFingerprint pack(const Fingerprint& fingerprint) noexcept {
    StoredFingerprint out;
    auto at = out.buffer.begin();
    const auto put = [&at](Bytes bytes) { at = std::copy(bytes.begin(), bytes.end(), at); };
    put(big_endian<1>(static_cast<std::uint8_t>(fingerprint.version)));
    put(Bytes(big_endian<4>(fingerprint.secret_id)).last(id_bytes(fingerprint)));
    put(Bytes(fingerprint.mac).first(mac_bytes(fingerprint.version)));
    out.size = static_cast<std::size_t>(at - out.buffer.begin());
    return out;
}

bool unpack(Bytes stored, Fingerprint& out) noexcept {
    if (stored.empty()) return false;
    out.version = static_cast<FingerprintVersion>(stored[0]);
    if (out.version != FingerprintVersion::whole_mac &&
        out.version != FingerprintVersion::leading_mac)
        return false;
    const std::size_t mac = mac_bytes(out.version);
    if (stored.size() < 1 + 1 + mac || stored.size() > 1 + 4 + mac) return false;
    out.secret_id =
        static_cast<std::uint32_t>(from_big_endian(stored.subspan(1, stored.size() - 1 - mac)));
    out.mac = {};
    std::copy(stored.end() - static_cast<std::ptrdiff_t>(mac), stored.end(), out.mac.begin());
    return stored.size() == 1 + id_bytes(out) + mac;
}

bool same_mac(const Fingerprint& a, const Fingerprint& b) noexcept {
    const std::size_t size = std::min(mac_bytes(a.version), mac_bytes(b.version));
    return CRYPTO_memcmp(a.mac.data(), b.mac.data(), size) == 0;
}

bool FingerprintSink::begin(const Secret& secret, std::uint32_t secret_id) noexcept {
    used_ = 0;
    secret_id_ = secret_id;
    return hmac.start(secret);
}

// The buffer has no room for the piece.
void FingerprintSink::write_beyond(Bytes bytes) noexcept {
    flush();
    if (bytes.size() > buffer_.size())
        hmac.write(bytes);
    else
        write(bytes);
}

void FingerprintSink::flush() noexcept {
    hmac.write(Bytes(buffer_).first(used_));
    used_ = 0;
}

bool FingerprintSink::finish(Fingerprint& out) noexcept {
    flush();
    out.version = FingerprintVersion::whole_mac;
    out.secret_id = secret_id_;
    return hmac.finish(out.mac);
}

}  // namespace idem::core
