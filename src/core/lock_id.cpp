#include "core/lock_id.hpp"

namespace idem::core {
namespace {

constinit BlockCipher cipher(BlockCipher::Direction::encipher);

}  // namespace

bool lock_id(const LockSeed& seed, const Digest& digest, std::uint64_t& out) noexcept {
    AesBlock block;
    if (!cipher.apply(seed, digest, block)) return false;
    out = from_big_endian(Bytes(block).first(8));
    return true;
}

}  // namespace idem::core
