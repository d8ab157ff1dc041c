#include "core/fingerprint.hpp"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include <algorithm>

namespace idem::core {
namespace {

// One context a process, keyed again only when the secret changes.
constinit EVP_MAC_CTX* context = nullptr;
constinit Secret keyed_with{};
constinit bool keyed = false;

const unsigned char* raw(Bytes bytes) noexcept {
    return reinterpret_cast<const unsigned char*>(bytes.data());
}

bool make_context() noexcept {
    if (context != nullptr) return true;
    EVP_MAC* hmac = EVP_MAC_fetch(nullptr, "HMAC", nullptr);
    if (hmac == nullptr) return false;
    context = EVP_MAC_CTX_new(hmac);
    EVP_MAC_free(hmac);  // the context keeps its own reference
    return context != nullptr;
}

bool start(const Secret& secret) noexcept {
    if (keyed && keyed_with == secret) return EVP_MAC_init(context, nullptr, 0, nullptr) == 1;
    char sha256[] = "SHA256";
    const OSSL_PARAM parameters[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, sha256, 0),
        OSSL_PARAM_construct_end()};
    keyed = make_context() && EVP_MAC_init(context, raw(secret), secret.size(), parameters) == 1;
    keyed_with = secret;
    return keyed;
}

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
    good_ = start(secret);
    return good_;
}

void FingerprintSink::write(Bytes bytes) noexcept {
    if (bytes.size() > buffer_.size() - used_) flush();
    if (bytes.size() > buffer_.size()) {
        good_ = good_ && EVP_MAC_update(context, raw(bytes), bytes.size()) == 1;
        return;
    }
    std::copy(bytes.begin(), bytes.end(), buffer_.begin() + static_cast<std::ptrdiff_t>(used_));
    used_ += bytes.size();
}

void FingerprintSink::flush() noexcept {
    good_ = good_ && EVP_MAC_update(context, raw(buffer_), used_) == 1;
    used_ = 0;
}

bool FingerprintSink::finish(Fingerprint& out) noexcept {
    flush();
    std::size_t written = 0;
    out.version = fingerprint_version;
    out.secret_id = secret_id_;
    auto* mac = reinterpret_cast<unsigned char*>(out.mac.data());
    return good_ && EVP_MAC_final(context, mac, &written, out.mac.size()) == 1 &&
           written == out.mac.size();
}

}  // namespace idem::core
