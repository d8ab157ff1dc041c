// The fingerprint of a request: what tells a retry from a different request under the same key.
//
// HMAC-SHA-256 over the canonical form of the request, keyed with a per-database secret, so that a
// leaked table does not give low-entropy requests away. It is stored with the version of this
// algorithm and the id of the secret; a record is always compared under what it was made with.
// One computation at a time: begin() starts over, so a walk that was cut short by an error leaves
// nothing behind. Not thread-safe; allocates and throws nothing.
#pragma once

#include "core/crypto.hpp"

namespace idem::core {

// The canonical form of a JSON value: equal values become equal bytes, different ones different.
//
// The caller walks its JSON and calls one method an event; a Sink takes the bytes. Every item is
// tagged, and every string has its length in front, so no two walks run into each other. Numbers go
// by value: 1, 1.0 and 1e0 agree, and two decimals that differ in their last digit never do.
// Members are taken in the caller's order, which must not depend on how the text was written.
// Pure; allocates and throws nothing.
// A number as sign, base-10000 digits (each two big-endian bytes, most significant first) and the
// power of 10000 of the first of them. Leading and trailing zero digits carry no value.
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
        sink_.write(big_endian<4>(n.digits.size()));
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
        sink_.write(big_endian<4>(utf8.size()));
        sink_.write(as_bytes(utf8));
    }

    Sink& sink_;
};

inline constexpr std::uint8_t fingerprint_version = 1;

struct Fingerprint {
    std::uint8_t version;
    std::uint32_t secret_id;
    Hash mac;
};

// As stored: version, secret id, mac.
using StoredFingerprint = std::array<std::byte, 1 + 4 + 32>;
StoredFingerprint pack(const Fingerprint& fingerprint) noexcept;
// False when the bytes are not a fingerprint of a version this library knows.
[[nodiscard]] bool unpack(Bytes stored, Fingerprint& out) noexcept;

// In constant time.
bool same_mac(const Fingerprint& a, const Fingerprint& b) noexcept;

// The Sink of a canonical walk. It buffers, so that a small request is one call into OpenSSL.
class FingerprintSink {
  public:
    [[nodiscard]] bool begin(const Secret& secret, std::uint32_t secret_id) noexcept;
    void write(Bytes bytes) noexcept;
    [[nodiscard]] bool finish(Fingerprint& out) noexcept;

  private:
    void flush() noexcept;

    std::array<std::byte, 512> buffer_;
    std::size_t used_ = 0;
    std::uint32_t secret_id_ = 0;
};

}  // namespace idem::core
