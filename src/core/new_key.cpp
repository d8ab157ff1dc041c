#include "core/new_key.hpp"

#include <algorithm>

namespace idem::core {

UuidText uuid_v7(std::uint64_t tick, std::uint64_t random) noexcept {
    constexpr std::uint64_t version = 7;
    constexpr std::uint64_t variant = 0b10;
    const auto front = big_endian<8>((tick >> 12) << 16 | version << 12 | (tick & 0xfff));
    const auto back = big_endian<8>(variant << 62 | (random & ~std::uint64_t{0} >> 2));

    Uuid uuid;
    std::copy(back.begin(), back.end(), std::copy(front.begin(), front.end(), uuid.begin()));
    return uuid_text(uuid);
}

bool child_key(const Secret& seed, const Digest& digest, std::string_view step,
               KeyText& out) noexcept {
    Hmac message(seed);
    write_text(message, "idem.child_key");
    message.write(digest);
    write_text(message, step);
    Hash hash;
    if (!message.finish(hash)) return false;
    put_hex(hash, out.begin());
    return true;
}

}  // namespace idem::core
