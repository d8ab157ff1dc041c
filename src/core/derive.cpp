#include "core/derive.hpp"

#include "core/crypto.hpp"

namespace idem::core {
namespace {

// One a process: the seed never changes.
constinit Hmac hmac;

template <class Function>
void write_text(Function& function, std::string_view text) noexcept {
    function.write(big_endian<4>(text.size()));
    function.write(as_bytes(text));
}

}  // namespace

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
