#include "core/fingerprint.hpp"

#include <openssl/crypto.h>

#include <algorithm>
#include <bit>

namespace idem::core {
namespace {

// Kept for good, because the secret seldom changes.
constinit Hmac hmac;

constexpr std::byte version{1};
constexpr std::byte listed{0x80};
constexpr unsigned group_bits = 7;

constexpr std::size_t id_bytes(std::uint32_t secret_id) noexcept {
    return std::max<std::size_t>(1, (static_cast<std::size_t>(std::bit_width(secret_id)) + 7) / 8);
}

// Takes version and list off the front. False unless both are there, the number in its shortest
// form.
bool take_list(Bytes& stored, ListNumber& out) noexcept {
    out = 0;
    if (stored.empty() || (stored[0] & ~listed) != version) return false;
    bool more = (stored[0] & listed) != std::byte{0};
    stored = stored.subspan(1);
    for (unsigned shift = 0; more; shift += group_bits) {
        if (stored.empty() || shift > 28) return false;
        const auto group = std::to_integer<std::uint64_t>(stored[0]);
        const std::uint64_t bits = (group & 0x7f) << shift;
        more = group > 0x7f;
        if ((!more && group == 0) || bits > UINT32_MAX) return false;
        out |= static_cast<ListNumber>(bits);
        stored = stored.subspan(1);
    }
    return true;
}

}  // namespace

StoredFingerprint pack(const Fingerprint& fingerprint) noexcept {
    StoredFingerprint out;
    out.size = 0;
    const auto put = [&out](Bytes bytes) {
        std::copy(bytes.begin(), bytes.end(),
                  out.buffer.begin() + static_cast<std::ptrdiff_t>(out.size));
        out.size += bytes.size();
    };
    const auto marked = [](std::byte bits, bool mark) { return mark ? bits | listed : bits; };
    put(std::array{marked(version, fingerprint.list != 0)});
    for (ListNumber list = fingerprint.list; list != 0; list >>= group_bits)
        put(std::array{marked(static_cast<std::byte>(list & 0x7f), list > 0x7f)});
    put(Bytes(big_endian<4>(fingerprint.secret_id)).last(id_bytes(fingerprint.secret_id)));
    put(Bytes(fingerprint.mac).first(leading_mac_bytes));
    return out;
}

bool unpack(Bytes stored, Fingerprint& out) noexcept {
    constexpr std::size_t mac = leading_mac_bytes;
    if (!take_list(stored, out.list)) return false;
    if (stored.size() < 1 + mac || stored.size() > 4 + mac) return false;
    const Bytes id = stored.first(stored.size() - mac);
    out.secret_id = static_cast<std::uint32_t>(from_big_endian(id));
    out.mac = {};
    std::copy(stored.end() - static_cast<std::ptrdiff_t>(mac), stored.end(), out.mac.begin());
    return id.size() == id_bytes(out.secret_id);
}

ListNumber list_number(Bytes stored) noexcept {
    ListNumber list;
    return take_list(stored, list) ? list : 0;
}

bool same_mac(const Fingerprint& a, const Fingerprint& b) noexcept {
    return CRYPTO_memcmp(a.mac.data(), b.mac.data(), leading_mac_bytes) == 0;
}

bool FingerprintSink::begin(const Secret& secret, std::uint32_t secret_id) noexcept {
    used_ = 0;
    secret_id_ = secret_id;
    return hmac.start(secret);
}

// The buffer has no room for the piece.
void FingerprintSink::write_beyond(Bytes bytes) noexcept {
    flush();
    if (bytes.size() > buffer_.size())
        hmac.write(bytes);
    else
        write(bytes);
}

void FingerprintSink::flush() noexcept {
    hmac.write(Bytes(buffer_).first(used_));
    used_ = 0;
}

bool FingerprintSink::finish(Fingerprint& out) noexcept {
    flush();
    out.list = 0;
    out.secret_id = secret_id_;
    return hmac.finish(out.mac);
}

}  // namespace idem::core
