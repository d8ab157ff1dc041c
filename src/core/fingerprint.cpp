#include "core/fingerprint.hpp"

#include <openssl/crypto.h>

#include <algorithm>
#include <bit>

namespace idem::core {
namespace {

// Kept for good, because the secret seldom changes.
constinit Hmac hmac;

constexpr std::size_t id_bytes(const Fingerprint& fingerprint) noexcept {
    return std::max<std::size_t>(
        1, (static_cast<std::size_t>(std::bit_width(fingerprint.secret_id)) + 7) / 8);
}

void put(StoredFingerprint& out, Bytes bytes) noexcept {
    std::copy(bytes.begin(), bytes.end(),
              out.buffer.begin() + static_cast<std::ptrdiff_t>(out.size));
    out.size += bytes.size();
}

void put_version(StoredFingerprint& out, FingerprintVersion version, ListNumber list) noexcept {
    const std::byte mark = list == 0 ? std::byte{0} : listed;
    out.size = 0;
    put(out, std::array{static_cast<std::byte>(version) | mark});
    for (; list != 0; list >>= 7) {
        const std::byte more = list > 0x7f ? std::byte{0x80} : std::byte{0};
        put(out, std::array{static_cast<std::byte>(list & 0x7f) | more});
    }
}

// Takes version and list off the front. False unless the list's number has its shortest form.
bool take_list(Bytes& stored, ListNumber& out) noexcept {
    out = 0;
    if (stored.empty()) return false;
    bool more = (stored[0] & listed) != std::byte{0};
    stored = stored.subspan(1);
    for (unsigned shift = 0; more; shift += 7) {
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

void put_id_and_mac(StoredFingerprint& out, const Fingerprint& fingerprint) noexcept {
    put(out, Bytes(big_endian<4>(fingerprint.secret_id)).last(id_bytes(fingerprint)));
    put(out, Bytes(fingerprint.mac).first(leading_mac_bytes));
}

// The codes of the members with their number in front, of what follows the list; empty if the
// number is not that of codes which are there.
Bytes member_part(Bytes rest) noexcept {
    if (rest.empty()) return {};
    const auto count = std::to_integer<std::size_t>(rest[0]);
    const std::size_t size = 1 + count * sizeof(MemberCode);
    if (count > max_members || rest.size() < size) return {};
    return rest.first(size);
}

// What follows the list and the codes of members.
bool unpack_id_and_mac(Bytes rest, Fingerprint& out) noexcept {
    constexpr std::size_t mac = leading_mac_bytes;
    if (rest.size() < 1 + mac || rest.size() > 4 + mac) return false;
    const std::size_t id = rest.size() - mac;
    out.secret_id = static_cast<std::uint32_t>(from_big_endian(rest.first(id)));
    out.mac = {};
    std::copy(rest.end() - static_cast<std::ptrdiff_t>(mac), rest.end(), out.mac.begin());
    return id == id_bytes(out);
}

}  // namespace

StoredFingerprint pack(const Fingerprint& fingerprint) noexcept {
    StoredFingerprint out;
    put_version(out, FingerprintVersion::leading_mac, fingerprint.list);
    put_id_and_mac(out, fingerprint);
    return out;
}

StoredFingerprint pack(const Fingerprint& fingerprint, const MemberCodes& members) noexcept {
    StoredFingerprint out;
    put_version(out, FingerprintVersion::member_codes, fingerprint.list);
    put(out, big_endian<1>(members.count));
    put(out, std::as_bytes(members.view()));
    put_id_and_mac(out, fingerprint);
    return out;
}

bool unpack(Bytes stored, Fingerprint& out) noexcept {
    const bool with_members = has_version(stored, FingerprintVersion::member_codes);
    if (!with_members && !has_version(stored, FingerprintVersion::leading_mac)) return false;
    if (!take_list(stored, out.list)) return false;
    if (with_members) {
        const Bytes members = member_part(stored);
        if (members.empty()) return false;
        stored = stored.subspan(members.size());
    }
    return unpack_id_and_mac(stored, out);
}

ListNumber list_number(Bytes stored) noexcept {
    const bool known = has_version(stored, FingerprintVersion::leading_mac) ||
                       has_version(stored, FingerprintVersion::member_codes);
    ListNumber list = 0;
    return known && take_list(stored, list) ? list : 0;
}

bool unpack_members(Bytes stored, MemberCodes& out) noexcept {
    ListNumber list;
    if (!has_version(stored, FingerprintVersion::member_codes) || !take_list(stored, list))
        return false;
    const Bytes part = member_part(stored);
    if (part.empty()) return false;
    const Bytes codes = part.subspan(1);
    out.count = codes.size() / sizeof(MemberCode);
    auto to = std::as_writable_bytes(std::span(out.codes));
    std::copy(codes.begin(), codes.end(), to.begin());
    return true;
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

// The messages of two members, and those of a name and a member, differ in what follows the MAC. No
// canonical form of a request begins with these tags, so no request has such a message.
bool MemberCoder::begin_message(char tag, std::string_view name) noexcept {
    if (!sink_.begin(secret_, whole_.secret_id)) return false;
    sink_.write(as_bytes(std::string_view(&tag, 1)));
    sink_.write(Bytes(whole_.mac).first(leading_mac_bytes));
    CanonicalWriter<FingerprintSink>(sink_).member(name);
    return true;
}

bool MemberCoder::begin(std::string_view name) noexcept {
    Fingerprint of_name;
    if (!begin_message('N', name) || !sink_.finish(of_name)) return false;
    of_name_ = of_name.mac;
    return begin_message('V', name);
}

bool MemberCoder::finish(MemberCode& out) noexcept {
    Fingerprint of_member;
    if (!sink_.finish(of_member)) return false;
    std::copy_n(of_name_.begin(), out.size() / 2, out.begin());
    std::copy_n(of_member.mac.begin(), out.size() / 2, out.begin() + out.size() / 2);
    return true;
}

namespace {

bool same_name(const MemberCode& a, const MemberCode& b) noexcept {
    return std::equal(a.begin(), a.begin() + a.size() / 2, b.begin());
}

// The stored members that no given one has been found for.
class Unmatched {
  public:
    explicit Unmatched(const MemberCodes& stored) noexcept : stored_(stored) { left_.fill(true); }
    template <class Same>
    bool take(Same same) noexcept {
        for (std::size_t i = 0; i < stored_.count; ++i)
            if (left_[i] && same(stored_.codes[i])) {
                left_[i] = false;
                return true;
            }
        return false;
    }
    std::size_t count() const noexcept {
        return static_cast<std::size_t>(std::count(
            left_.begin(), left_.begin() + static_cast<std::ptrdiff_t>(stored_.count), true));
    }

  private:
    const MemberCodes& stored_;
    std::array<bool, max_members> left_;
};

}  // namespace

// Members that are the same are matched first. So two names with the same code cannot make an
// unchanged member look changed.
MemberDifferences compare(const MemberCodes& given, const MemberCodes& stored) noexcept {
    MemberDifferences result;
    Unmatched unmatched(stored);
    for (std::size_t i = 0; i < given.count; ++i) {
        const auto same = [&](const MemberCode& code) { return code == given.codes[i]; };
        result.changes[i] = unmatched.take(same) ? MemberChange::none : MemberChange::added;
    }
    for (std::size_t i = 0; i < given.count; ++i) {
        const auto same = [&](const MemberCode& code) { return same_name(code, given.codes[i]); };
        if (result.changes[i] == MemberChange::added && unmatched.take(same))
            result.changes[i] = MemberChange::changed;
    }
    result.missing = unmatched.count();
    return result;
}

}  // namespace idem::core
