#include "core/crypto.hpp"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>

namespace idem::core {
namespace {

// Fetching an algorithm is slow, so these are kept until the process exits.
constinit EVP_MD* sha256 = nullptr;
constinit EVP_MD_CTX* sha256_context = nullptr;
constinit EVP_CIPHER* aes = nullptr;

// Makes the context if there is none yet.
bool is_ready(EVP_MD_CTX*& context) noexcept {
    if (sha256 == nullptr) sha256 = EVP_MD_fetch(nullptr, "SHA256", nullptr);
    if (context == nullptr) context = EVP_MD_CTX_new();
    return sha256 != nullptr && context != nullptr;
}

const unsigned char* raw(Bytes bytes) noexcept {
    return reinterpret_cast<const unsigned char*>(bytes.data());
}

bool finish_hash(EVP_MD_CTX* context, Hash& out) noexcept {
    static_assert(sizeof(Hash) == 32, "EVP_DigestFinal_ex writes as many bytes as SHA-256 has");
    auto* bytes = reinterpret_cast<unsigned char*>(out.data());
    return EVP_DigestFinal_ex(context, bytes, nullptr) == 1;
}

// Begins a hash with the key, which is combined with the pad of RFC 2104 and fills one block.
bool begin_with(EVP_MD_CTX*& context, const Secret& key, std::byte pad) noexcept {
    std::array<std::byte, 64> block;
    block.fill(pad);
    std::transform(key.begin(), key.end(), block.begin(), [pad](std::byte b) { return b ^ pad; });
    const bool begun = is_ready(context) && EVP_DigestInit_ex2(context, sha256, nullptr) == 1 &&
                       EVP_DigestUpdate(context, block.data(), block.size()) == 1;
    OPENSSL_cleanse(block.data(), block.size());
    return begun;
}

}  // namespace

Sha256::Sha256() noexcept
    : good_(is_ready(sha256_context) && EVP_DigestInit_ex2(sha256_context, sha256, nullptr) == 1) {}

void Sha256::write(Bytes bytes) noexcept {
    good_ = good_ && EVP_DigestUpdate(sha256_context, bytes.data(), bytes.size()) == 1;
}

bool Sha256::finish(Hash& out) noexcept {
    return good_ && finish_hash(sha256_context, out);
}

bool Hmac::key_with(const Secret& secret) noexcept {
    keyed_ = begin_with(inner_, secret, std::byte{0x36}) &&
             begin_with(outer_, secret, std::byte{0x5c}) && is_ready(working_);
    keyed_with_ = secret;
    return keyed_;
}

bool Hmac::start(const Secret& secret) noexcept {
    const bool keyed = (keyed_ && keyed_with_ == secret) || key_with(secret);
    good_ = keyed && EVP_MD_CTX_copy_ex(working_, inner_) == 1;
    return good_;
}

void Hmac::write(Bytes bytes) noexcept {
    good_ = good_ && EVP_DigestUpdate(working_, bytes.data(), bytes.size()) == 1;
}

bool Hmac::finish(Hash& out) noexcept {
    Hash inner;
    return good_ && finish_hash(working_, inner) && EVP_MD_CTX_copy_ex(working_, outer_) == 1 &&
           EVP_DigestUpdate(working_, inner.data(), inner.size()) == 1 &&
           finish_hash(working_, out);
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
