#include "core/fingerprint.hpp"

#include <openssl/crypto.h>

#include <algorithm>

namespace idem::core {
namespace {

constexpr std::byte listed{0x80};

// Takes a number off the front, as write_groups() writes it. False unless it is there, in its
// shortest form.
bool take_number(Bytes& stored, std::uint32_t& out) noexcept {
    std::uint64_t number = 0;
    for (unsigned shift = 0; shift <= 28 && !stored.empty(); shift += 7) {
        const auto group = std::to_integer<std::uint64_t>(stored[0]);
        stored = stored.subspan(1);
        number |= (group & 0x7f) << shift;
        if (group > 0x7f) continue;
        out = static_cast<std::uint32_t>(number);
        return number <= UINT32_MAX && (group != 0 || shift == 0);
    }
    return false;
}

bool take_list(Bytes& stored, FingerprintForm& form, ListNumber& out) noexcept {
    out = 0;
    if (stored.empty()) return false;
    form = static_cast<FingerprintForm>(stored[0] & ~listed);
    if (form != FingerprintForm::canonical && form != FingerprintForm::text) return false;
    const bool has_list = (stored[0] & listed) != std::byte{0};
    stored = stored.subspan(1);
    return !has_list || (take_number(stored, out) && out != 0);
}

}  // namespace

StoredFingerprint pack(const Fingerprint& fingerprint) noexcept {
    StoredFingerprint out;
    out.size = 0;
    const auto put = [&out](std::byte byte) { out.buffer[out.size++] = byte; };
    const auto version = static_cast<std::byte>(fingerprint.form);
    put(fingerprint.list == 0 ? version : version | listed);
    if (fingerprint.list != 0) write_groups(fingerprint.list, put);
    write_groups(fingerprint.secret_id, put);
    for (const std::byte byte : Bytes(fingerprint.mac).first(leading_mac_bytes)) put(byte);
    return out;
}

bool unpack(Bytes stored, Fingerprint& out) noexcept {
    if (!take_list(stored, out.form, out.list) || !take_number(stored, out.secret_id)) return false;
    out.mac = {};
    std::copy_n(stored.begin(), std::min(stored.size(), out.mac.size()), out.mac.begin());
    return stored.size() == leading_mac_bytes;
}

ListNumber list_number(Bytes stored) noexcept {
    FingerprintForm form;
    ListNumber list;
    return take_list(stored, form, list) ? list : 0;
}

bool same_mac(const Fingerprint& a, const Fingerprint& b) noexcept {
    return CRYPTO_memcmp(a.mac.data(), b.mac.data(), leading_mac_bytes) == 0;
}

}  // namespace idem::core
