#include "core/crypto.hpp"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include <algorithm>

namespace idem::core {
namespace {

// Fetching an algorithm is slow, so these are kept until the process exits.
constinit EVP_MD* sha256 = nullptr;
constinit EVP_MD_CTX* sha256_context = nullptr;
constinit EVP_CIPHER* aes = nullptr;

bool sha256_is_ready() noexcept {
    if (sha256 == nullptr) sha256 = EVP_MD_fetch(nullptr, "SHA256", nullptr);
    if (sha256_context == nullptr) sha256_context = EVP_MD_CTX_new();
    return sha256 != nullptr && sha256_context != nullptr;
}

const unsigned char* raw(Bytes bytes) noexcept {
    return reinterpret_cast<const unsigned char*>(bytes.data());
}

EVP_MAC_CTX* new_hmac_context() noexcept {
    EVP_MAC* hmac = EVP_MAC_fetch(nullptr, "HMAC", nullptr);
    if (hmac == nullptr) return nullptr;
    EVP_MAC_CTX* context = EVP_MAC_CTX_new(hmac);
    EVP_MAC_free(hmac);  // the context holds its own reference
    return context;
}

}  // namespace

Sha256::Sha256() noexcept
    : good_(sha256_is_ready() && EVP_DigestInit_ex2(sha256_context, sha256, nullptr) == 1) {}

void Sha256::write(Bytes bytes) noexcept {
    good_ = good_ && EVP_DigestUpdate(sha256_context, bytes.data(), bytes.size()) == 1;
}

bool Sha256::finish(Hash& out) noexcept {
    static_assert(sizeof(Hash) == 32, "EVP_DigestFinal_ex writes as many bytes as SHA-256 has");
    auto* bytes = reinterpret_cast<unsigned char*>(out.data());
    return good_ && EVP_DigestFinal_ex(sha256_context, bytes, nullptr) == 1;
}

bool Hmac::key_with(const Secret& secret) noexcept {
    if (context_ == nullptr) context_ = new_hmac_context();
    if (context_ == nullptr) return false;
    char digest[] = "SHA256";
    const OSSL_PARAM parameters[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
        OSSL_PARAM_construct_end()};
    keyed_ = EVP_MAC_init(context_, raw(secret), secret.size(), parameters) == 1;
    keyed_with_ = secret;
    return keyed_;
}

bool Hmac::start(const Secret& secret) noexcept {
    good_ = keyed_ && keyed_with_ == secret ? EVP_MAC_init(context_, nullptr, 0, nullptr) == 1
                                            : key_with(secret);
    return good_;
}

void Hmac::write(Bytes bytes) noexcept {
    good_ = good_ && EVP_MAC_update(context_, raw(bytes), bytes.size()) == 1;
}

bool Hmac::finish(Hash& out) noexcept {
    std::size_t written = 0;
    auto* mac = reinterpret_cast<unsigned char*>(out.data());
    return good_ && EVP_MAC_final(context_, mac, &written, out.size()) == 1 &&
           written == out.size();
}

bool BlockCipher::ready(const AesKey& key) noexcept {
    if (keyed_ && key_ == key) return true;
    if (aes == nullptr) aes = EVP_CIPHER_fetch(nullptr, "AES-128-ECB", nullptr);
    if (context_ == nullptr) context_ = EVP_CIPHER_CTX_new();
    keyed_ = aes != nullptr && context_ != nullptr &&
             EVP_CipherInit_ex2(context_, aes, raw(key), nullptr, static_cast<int>(direction_),
                                nullptr) == 1 &&
             EVP_CIPHER_CTX_set_padding(context_, 0) == 1;
    key_ = key;
    return keyed_;
}

bool BlockCipher::apply(const AesKey& key, const AesBlock& in, AesBlock& out) noexcept {
    std::array<std::byte, 32> room{};  // OpenSSL may write up to a block more
    int written = 0;
    const bool done = ready(key) &&
                      EVP_CipherUpdate(context_, reinterpret_cast<unsigned char*>(room.data()),
                                       &written, raw(in), static_cast<int>(in.size())) == 1 &&
                      written == static_cast<int>(out.size());
    if (done) std::copy_n(room.begin(), out.size(), out.begin());
    return done;
}

}  // namespace idem::core
