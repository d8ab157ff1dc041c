#include "core/seal.hpp"

namespace idem::core {
namespace {

constinit BlockCipher sealer(BlockCipher::Direction::encipher);
constinit BlockCipher opener(BlockCipher::Direction::decipher);

}  // namespace

bool seal(const SealKey& key, const Digest& digest, Digest& out) noexcept {
    return sealer.apply(key, digest, out);
}

bool unseal(const SealKey& key, const Digest& sealed, Digest& out) noexcept {
    return opener.apply(key, sealed, out);
}

}  // namespace idem::core
