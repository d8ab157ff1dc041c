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

// The hash under computation. Every message begins as a copy of one of the contexts below: that
// costs less than EVP_DigestInit_ex2().
constinit EVP_MD_CTX* running = nullptr;
constinit EVP_MD_CTX* of_nothing = nullptr;

// RFC 2104: HMAC(message) = SHA-256(outer block, SHA-256(inner block, message)). The blocks are the
// key, padded and masked. OpenSSL's EVP_MAC functions would take more instructions than the hashing
// itself (bench/instructions --profile claim).
struct KeyedHashes {
    Secret key;
    bool good;
    EVP_MD_CTX* of_inner_block;
    EVP_MD_CTX* of_outer_block;
};
constinit KeyedHashes keyed{};

bool begin_as(const EVP_MD_CTX* begun) noexcept {
    if (running == nullptr) running = EVP_MD_CTX_new();
    return running != nullptr && EVP_MD_CTX_copy_ex(running, begun) == 1;
}

const EVP_MD_CTX* hash_of_nothing() noexcept {
    if (of_nothing != nullptr) return of_nothing;
    EVP_MD_CTX* made = EVP_MD_CTX_new();
    EVP_MD* sha256 = EVP_MD_fetch(nullptr, "SHA256", nullptr);
    if (made != nullptr && sha256 != nullptr && EVP_DigestInit_ex2(made, sha256, nullptr) == 1)
        of_nothing = made;
    else
        EVP_MD_CTX_free(made);
    EVP_MD_free(sha256);  // the context has its own reference
    return of_nothing;
}

bool hash_block(EVP_MD_CTX*& out, const Secret& key, std::byte mask) noexcept {
    std::array<std::byte, 64> block;
    block.fill(mask);
    for (std::size_t i = 0; i < key.size(); ++i) block[i] ^= key[i];
    if (out == nullptr) out = EVP_MD_CTX_new();
    return out != nullptr && EVP_MD_CTX_copy_ex(out, hash_of_nothing()) == 1 &&
           EVP_DigestUpdate(out, block.data(), block.size()) == 1;
}

const EVP_MD_CTX* hash_of_inner_block(const Secret& key) noexcept {
    if (!keyed.good || !same(keyed.key, key)) {
        keyed.key = key;
        keyed.good = hash_block(keyed.of_inner_block, key, std::byte{0x36}) &&
                     hash_block(keyed.of_outer_block, key, std::byte{0x5c});
    }
    return keyed.good ? keyed.of_inner_block : nullptr;
}

}  // namespace

Sha256::Sha256() noexcept : Sha256(hash_of_nothing()) {}

Sha256::Sha256(const evp_md_ctx_st* begun) noexcept : good_(begin_as(begun)) {}

void Sha256::write_beyond(Bytes bytes) noexcept {
    hash(Bytes(buffer_).first(used_));
    used_ = 0;
    if (bytes.size() > buffer_.size())
        hash(bytes);
    else
        write(bytes);
}

void Sha256::hash(Bytes bytes) noexcept {
    good_ = good_ && EVP_DigestUpdate(running, bytes.data(), bytes.size()) == 1;
}

bool Sha256::finish(Hash& out) noexcept {
    static_assert(sizeof(Hash) == 32, "EVP_DigestFinal_ex writes as many bytes as SHA-256 has");
    hash(Bytes(buffer_).first(used_));
    return good_ && EVP_DigestFinal_ex(running, raw(out), nullptr) == 1;
}

Hmac::Hmac(const Secret& secret) noexcept : inner_(hash_of_inner_block(secret)) {}

bool Hmac::finish(Hash& out) noexcept {
    Hash inner;
    if (!inner_.finish(inner)) return false;
    Sha256 outer(keyed.of_outer_block);
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
