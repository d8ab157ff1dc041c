#include "core/derive.hpp"

#include "core/hex.hpp"
#include "core/sha256.hpp"

namespace idem::core {

bool derive_key(std::span<const std::string_view> parts, KeyText& out) noexcept {
    Sha256 sha256;
    for (std::string_view part : parts) {
        sha256.write(big_endian<4>(part.size()));
        sha256.write(as_bytes(part));
    }
    Hash hash;
    if (!sha256.finish(hash)) return false;
    put_hex(hash, out.begin());
    return true;
}

}  // namespace idem::core
