#include "core/aes_block.hpp"

#include <openssl/evp.h>

#include <algorithm>

namespace idem::core {
namespace {

constinit EVP_CIPHER* aes = nullptr;

}  // namespace

bool BlockCipher::ready(const AesKey& key) noexcept {
    if (keyed_ && key_ == key) return true;
    if (aes == nullptr) aes = EVP_CIPHER_fetch(nullptr, "AES-128-ECB", nullptr);
    if (context_ == nullptr) context_ = EVP_CIPHER_CTX_new();
    keyed_ = aes != nullptr && context_ != nullptr &&
             EVP_CipherInit_ex2(context_, aes, reinterpret_cast<const unsigned char*>(key.data()),
                                nullptr, static_cast<int>(direction_), nullptr) == 1 &&
             EVP_CIPHER_CTX_set_padding(context_, 0) == 1;
    key_ = key;
    return keyed_;
}

bool BlockCipher::apply(const AesKey& key, const AesBlock& in, AesBlock& out) noexcept {
    std::array<std::byte, 32> room{};  // one block, and what a cipher may ask for besides
    int written = 0;
    const bool done = ready(key) &&
                      EVP_CipherUpdate(context_, reinterpret_cast<unsigned char*>(room.data()),
                                       &written, reinterpret_cast<const unsigned char*>(in.data()),
                                       static_cast<int>(in.size())) == 1 &&
                      written == static_cast<int>(out.size());
    if (done) std::copy_n(room.begin(), out.size(), out.begin());
    return done;
}

}  // namespace idem::core
