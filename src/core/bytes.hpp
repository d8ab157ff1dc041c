// Views of bytes, the byte order of numbers, and hexadecimal digits.
//
// Numbers in digests and tokens are big-endian, so that they mean the same on every machine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

namespace idem::core {

using Bytes = std::span<const std::byte>;

inline Bytes as_bytes(std::string_view text) noexcept {
    return std::as_bytes(std::span(text.data(), text.size()));
}

template <std::size_t Width>
constexpr std::array<std::byte, Width> big_endian(std::uint64_t value) noexcept {
    std::array<std::byte, Width> out{};
    for (std::size_t i = 0; i < Width; ++i)
        out[i] = static_cast<std::byte>((value >> (8 * (Width - 1 - i))) & 0xff);
    return out;
}

// At most eight bytes.
constexpr std::uint64_t from_big_endian(Bytes in) noexcept {
    std::uint64_t value = 0;
    for (std::byte b : in) value = (value << 8) | std::to_integer<std::uint64_t>(b);
    return value;
}

// Writes the text to a hash, after its length: so two lists of texts never become the same bytes.
template <class Sink>
void write_text(Sink& sink, std::string_view text) noexcept {
    sink.write(big_endian<4>(text.size()));
    sink.write(as_bytes(text));
}

// Writes two lower-case hexadecimal digits per byte to an output iterator of char, and returns the
// position after the last digit.
template <class Out>
constexpr Out put_hex(Bytes bytes, Out out) noexcept {
    constexpr std::string_view digits = "0123456789abcdef";
    for (std::byte b : bytes) {
        *out++ = digits[std::to_integer<std::size_t>(b >> 4)];
        *out++ = digits[std::to_integer<std::size_t>(b & std::byte{0xf})];
    }
    return out;
}

// By character: the value of each digit, -1 for any other character. Each alphabet has all digits.
using DigitValues = std::array<std::int8_t, 256>;
constexpr DigitValues digit_values(std::initializer_list<std::string_view> alphabets) noexcept {
    DigitValues table{};
    table.fill(-1);
    for (const std::string_view digits : alphabets)
        for (std::size_t i = 0; i < digits.size(); ++i)
            table[static_cast<unsigned char>(digits[i])] = static_cast<std::int8_t>(i);
    return table;
}

constexpr int digit_value(const DigitValues& table, char c) noexcept {
    return table[static_cast<unsigned char>(c)];
}

}  // namespace idem::core
