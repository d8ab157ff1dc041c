#include "core/new_key.hpp"

#include <algorithm>

namespace idem::core {
namespace {

// Kept for good, because the seed never changes.
constinit Hmac hmac;

template <class Function>
void write_text(Function& function, std::string_view text) noexcept {
    function.write(big_endian<4>(text.size()));
    function.write(as_bytes(text));
}

}  // namespace

UuidText uuid_v7(std::uint64_t tick, std::uint64_t random) noexcept {
    constexpr std::uint64_t version = 7;
    constexpr std::uint64_t variant = 0b10;
    const auto front = big_endian<8>((tick >> 12) << 16 | version << 12 | (tick & 0xfff));
    const auto back = big_endian<8>(variant << 62 | (random & ~std::uint64_t{0} >> 2));

    Uuid uuid;
    std::copy(back.begin(), back.end(), std::copy(front.begin(), front.end(), uuid.begin()));
    return uuid_text(uuid);
}

bool derive_key(std::span<const std::string_view> parts, KeyText& out) noexcept {
    Sha256 sha256;
    for (std::string_view part : parts) write_text(sha256, part);
    Hash hash;
    if (!sha256.finish(hash)) return false;
    put_hex(hash, out.begin());
    return true;
}

bool child_key(const Secret& seed, const Digest& digest, std::string_view step,
               KeyText& out) noexcept {
    if (!hmac.start(seed)) return false;
    write_text(hmac, "idem.child_key");
    hmac.write(digest);
    write_text(hmac, step);
    Hash hash;
    if (!hmac.finish(hash)) return false;
    put_hex(hash, out.begin());
    return true;
}

}  // namespace idem::core
