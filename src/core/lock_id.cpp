#include "core/lock_id.hpp"

#include <openssl/evp.h>

namespace idem::core {
namespace {

constinit EVP_CIPHER* aes = nullptr;
constinit EVP_CIPHER_CTX* context = nullptr;
constinit LockSeed keyed_with{};
constinit bool keyed = false;

const unsigned char* raw(const std::byte* bytes) noexcept {
    return reinterpret_cast<const unsigned char*>(bytes);
}

// Expanding the key costs more than the block: it is done once for each seed.
bool ready(const LockSeed& seed) noexcept {
    if (keyed && keyed_with == seed) return true;
    if (aes == nullptr) aes = EVP_CIPHER_fetch(nullptr, "AES-128-ECB", nullptr);
    if (context == nullptr) context = EVP_CIPHER_CTX_new();
    keyed = aes != nullptr && context != nullptr &&
            EVP_EncryptInit_ex2(context, aes, raw(seed.data()), nullptr, nullptr) == 1 &&
            EVP_CIPHER_CTX_set_padding(context, 0) == 1;
    keyed_with = seed;
    return keyed;
}

}  // namespace

bool lock_id(const LockSeed& seed, const Digest& digest, std::uint64_t& out) noexcept {
    std::array<std::byte, 32> block{};  // one block, and the room a cipher may ask for
    int written = 0;
    const bool enciphered =
        ready(seed) &&
        EVP_EncryptUpdate(context, reinterpret_cast<unsigned char*>(block.data()), &written,
                          raw(digest.data()), static_cast<int>(digest.size())) == 1;
    if (!enciphered) return false;
    out = from_big_endian(Bytes(block).first(8));
    return true;
}

}  // namespace idem::core
