#include "core/uuid.hpp"

#include "core/bytes.hpp"

namespace idem::core {

UuidText uuid_v7(std::uint64_t tick, std::uint64_t random) noexcept {
    constexpr std::uint64_t version = 7;
    constexpr std::uint64_t variant = 0b10;
    const auto front = big_endian<8>((tick >> 12) << 16 | version << 12 | (tick & 0xfff));
    const auto back = big_endian<8>(variant << 62 | (random & ~std::uint64_t{0} >> 2));

    UuidText out{};
    auto at = out.begin();
    const auto put = [&at](Bytes group) { at = put_hex(group, at); };
    const auto hyphen = [&at] { *at++ = '-'; };
    put(Bytes(front).first(4));
    hyphen();
    put(Bytes(front).subspan(4, 2));
    hyphen();
    put(Bytes(front).last(2));
    hyphen();
    put(Bytes(back).first(2));
    hyphen();
    put(Bytes(back).last(6));
    return out;
}

}  // namespace idem::core
