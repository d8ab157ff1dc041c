// The fingerprint of a request, which distinguishes a retry from a different request with the same
// key.
//
// It is the HMAC-SHA-256 of the request's canonical form with a secret of the database. Without the
// secret, a leaked table does not reveal requests that can be guessed. A fingerprint is stored with
// the version of its form and the id of the secret. A retry is fingerprinted with the secret of
// the stored record.
#pragma once

#include "core/crypto.hpp"

namespace idem::core {

// A number: its sign, its base-10000 digits (two big-endian bytes each, most significant first) and
// the exponent of 10000 of the first digit. Leading and trailing zero digits have no meaning.
struct Decimal {
    bool negative;
    int weight;
    Bytes digits;
};

constexpr Decimal normalized(Decimal n) noexcept {
    const auto is_zero = [](Bytes digit) { return from_big_endian(digit) == 0; };
    while (!n.digits.empty() && is_zero(n.digits.first(2))) {
        n.digits = n.digits.subspan(2);
        --n.weight;
    }
    while (!n.digits.empty() && is_zero(n.digits.last(2)))
        n.digits = n.digits.first(n.digits.size() - 2);
    return n.digits.empty() ? Decimal{false, 0, {}} : n;
}

// Calls put(byte) for the bytes of a number: groups of seven bits, the lowest first, each but the
// last with the high bit set.
template <class Put>
constexpr void write_groups(std::uint64_t number, Put put) noexcept {
    for (; number > 0x7f; number >>= 7) put(static_cast<std::byte>(number | 0x80));
    put(static_cast<std::byte>(number));
}

// Writes the canonical form of a JSON value: equal values give equal bytes, and different values
// different bytes.
//
// The caller walks the value and calls one function per event; the bytes go to sink.write(). Every
// item begins with a tag, and every string has its length in front of it. Numbers are equal when
// their values are: 1, 1.0 and 1e0 are, and decimals that differ in any digit are not. The caller
// passes the members of an object in an order that does not depend on how the text was written.
template <class Sink>
class CanonicalWriter {
  public:
    explicit constexpr CanonicalWriter(Sink& sink) noexcept : sink_(sink) {}

    void null() noexcept { tag('n'); }
    void boolean(bool value) noexcept { tag(value ? 't' : 'f'); }
    void string(std::string_view utf8) noexcept { text('s', utf8); }
    void number(const Decimal& value) noexcept {
        const Decimal n = normalized(value);
        tag(n.negative ? '-' : '+');
        sink_.write(big_endian<4>(static_cast<std::uint32_t>(n.weight)));
        length(n.digits.size());
        sink_.write(n.digits);
    }
    void begin_array() noexcept { tag('['); }
    void end_array() noexcept { tag(']'); }
    void begin_object() noexcept { tag('{'); }
    void member(std::string_view utf8) noexcept { text('m', utf8); }
    void end_object() noexcept { tag('}'); }

  private:
    void tag(char c) noexcept { sink_.write(as_bytes(std::string_view(&c, 1))); }
    void text(char kind, std::string_view utf8) noexcept {
        tag(kind);
        length(utf8.size());
        sink_.write(as_bytes(utf8));
    }
    // Most requests fit in one or two blocks of the hash.
    void length(std::size_t n) noexcept {
        write_groups(n, [this](std::byte byte) { sink_.write(std::array{byte}); });
    }

    Sink& sink_;
};

// The scope keeps its lists of excluded members by their numbers, from 1. A retry is compared
// without the members that the list of its record names, whatever the list of new keys is. 0 is the
// empty list.
using ListNumber = std::uint32_t;

// RFC 2104 allows a MAC to be truncated to half its length. A second request with the same 128 bits
// cannot be computed without the secret, and is met by chance once in 2^128 attempts.
inline constexpr std::size_t leading_mac_bytes = 16;

// What is hashed: the canonical form with HMAC; or, as the SQL edition does it, the secret and the
// text of the jsonb value in UTF-8, in which equal numbers are equal texts. Records that were moved
// from the SQL edition keep the second form. The number is the stored version.
enum class FingerprintForm : std::uint8_t { canonical = 1, text = 2 };

struct Fingerprint {
    ListNumber list;
    std::uint32_t secret_id;
    Hash mac;  // only its leading bytes, if it was stored
    FingerprintForm form = FingerprintForm::canonical;
};

// Stands for a fingerprint that every request has, and no request: one byte, a version of its own.
inline constexpr std::array<std::byte, 1> fingerprint_of_any{std::byte{0}};

constexpr bool is_of_any(Bytes stored) noexcept {
    return stored.size() == fingerprint_of_any.size() && stored[0] == fingerprint_of_any[0];
}

// How a fingerprint is stored: the version, which says what was hashed, the number of its list, the
// secret's id, both as write_groups() writes them, and the leading bytes of the MAC. The number of
// the list is left out if it is 0; else the version's high bit is set. Each release reads the
// versions of all earlier releases, because records outlive a release.
struct StoredFingerprint {
    std::array<std::byte, 1 + 5 + 5 + leading_mac_bytes> buffer;
    std::size_t size;

    Bytes bytes() const noexcept { return Bytes(buffer).first(size); }
};
StoredFingerprint pack(const Fingerprint& fingerprint) noexcept;
// False when the bytes are not a fingerprint of a known version.
[[nodiscard]] bool unpack(Bytes stored, Fingerprint& out) noexcept;
ListNumber list_number(Bytes stored) noexcept;

// Compares the leading bytes of the MACs in constant time.
bool same_mac(const Fingerprint& a, const Fingerprint& b) noexcept;

}  // namespace idem::core
