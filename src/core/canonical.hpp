// The canonical form of a JSON value: equal values become equal bytes, different ones different.
//
// The caller walks its JSON and calls one method an event; a Sink takes the bytes. Every item is
// tagged, and every string has its length in front, so no two walks run into each other. Numbers go
// by value: 1, 1.0 and 1e0 agree, and two decimals that differ in their last digit never do.
// Members are taken in the caller's order, which must not depend on how the text was written.
// Pure; allocates and throws nothing.
#pragma once

#include "core/bytes.hpp"

namespace idem::core {

// A number as sign, base-10000 digits (each two big-endian bytes, most significant first) and the
// power of 10000 of the first of them. Leading and trailing zero digits carry no value.
struct Decimal {
    bool negative;
    int weight;
    Bytes digits;
};

constexpr Decimal normalised(Decimal n) noexcept {
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
class Canonical {
  public:
    explicit constexpr Canonical(Sink& sink) noexcept : sink_(sink) {}

    void null() noexcept { tag('n'); }
    void boolean(bool value) noexcept { tag(value ? 't' : 'f'); }
    void string(std::string_view utf8) noexcept { text('s', utf8); }
    void number(const Decimal& value) noexcept {
        const Decimal n = normalised(value);
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

}  // namespace idem::core
