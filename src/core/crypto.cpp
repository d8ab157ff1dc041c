// SHA-256 by the functions that OpenSSL 3 calls deprecated: those of EVP, which it recommends, take
// as long as the hashing of a short message, and touch 200 lines of the instruction cache.
#define OPENSSL_SUPPRESS_DEPRECATED

#include "core/crypto.hpp"

#include <openssl/evp.h>

#include <cstring>

namespace idem::core {
namespace {

const unsigned char* raw(Bytes bytes) noexcept {
    return reinterpret_cast<const unsigned char*>(bytes.data());
}

template <std::size_t Size>
unsigned char* raw(std::array<std::byte, Size>& bytes) noexcept {
    return reinterpret_cast<unsigned char*>(bytes.data());
}

// Compares faster than the operator of std::array does.
template <class Key>
bool same(const Key& a, const Key& b) noexcept {
    return std::memcmp(a.data(), b.data(), a.size()) == 0;
}

// RFC 2104: HMAC(message) = SHA-256(outer block, SHA-256(inner block, message)). The blocks are the
// key, padded and masked; these are the states that follow them.
struct KeyedHashes {
    Secret key;
    bool good;
    SHA256_CTX after_inner_block;
    SHA256_CTX after_outer_block;
};
constinit KeyedHashes keyed{};

bool hash_block(SHA256_CTX& out, const Secret& key, std::byte mask) noexcept {
    std::array<std::byte, 64> block;
    block.fill(mask);
    for (std::size_t i = 0; i < key.size(); ++i) block[i] ^= key[i];
    return SHA256_Init(&out) == 1 && SHA256_Update(&out, block.data(), block.size()) == 1;
}

const KeyedHashes& keyed_with(const Secret& key) noexcept {
    if (!keyed.good || !same(keyed.key, key)) {
        keyed.key = key;
        keyed.good = hash_block(keyed.after_inner_block, key, std::byte{0x36}) &&
                     hash_block(keyed.after_outer_block, key, std::byte{0x5c});
    }
    return keyed;
}

}  // namespace

Sha256::Sha256() noexcept : good_(SHA256_Init(&state_) == 1) {}

Sha256::Sha256(const SHA256_CTX& begun) noexcept : state_(begun), good_(true) {}

void Sha256::write_beyond(Bytes bytes) noexcept {
    hash(Bytes(buffer_).first(used_));
    used_ = 0;
    if (bytes.size() > buffer_.size())
        hash(bytes);
    else
        write(bytes);
}

void Sha256::hash(Bytes bytes) noexcept {
    good_ = good_ && SHA256_Update(&state_, bytes.data(), bytes.size()) == 1;
}

bool Sha256::finish(Hash& out) noexcept {
    static_assert(sizeof(Hash) == 32, "SHA256_Final writes as many bytes as SHA-256 has");
    hash(Bytes(buffer_).first(used_));
    return good_ && SHA256_Final(raw(out), &state_) == 1;
}

Hmac::Hmac(const Secret& secret) noexcept : inner_(keyed_with(secret).after_inner_block) {
    inner_.good_ = keyed.good;
}

bool Hmac::finish(Hash& out) noexcept {
    Hash inner;
    if (!inner_.finish(inner)) return false;
    Sha256 outer(keyed.after_outer_block);
    outer.write(inner);
    return outer.finish(out);
}

bool BlockCipher::ready(const AesKey& key) noexcept {
    if (keyed_ && same(key_, key)) return true;
    if (context_ == nullptr) context_ = EVP_CIPHER_CTX_new();
    EVP_CIPHER* aes = EVP_CIPHER_fetch(nullptr, "AES-128-ECB", nullptr);
    keyed_ = aes != nullptr && context_ != nullptr &&
             EVP_CipherInit_ex2(context_, aes, raw(Bytes(key)), nullptr,
                                static_cast<int>(direction_), nullptr) == 1 &&
             EVP_CIPHER_CTX_set_padding(context_, 0) == 1;
    EVP_CIPHER_free(aes);  // the context has its own reference
    key_ = key;
    return keyed_;
}

bool BlockCipher::apply(const AesKey& key, const AesBlock& in, AesBlock& out) noexcept {
    return ready(key) && EVP_Cipher(context_, raw(out), raw(Bytes(in)), AesBlock{}.size()) > 0;
}

}  // namespace idem::core
