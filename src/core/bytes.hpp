// Views of bytes, the byte order of numbers, and hexadecimal digits.
//
// Numbers in digests and tokens are big-endian, so that they mean the same on every machine. Texts
// are preceded by their length, so that two different inputs never become the same bytes.
//
// Pure functions; no allocation, no exceptions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace idem::core {

// A view; it does not own the bytes.
using Bytes = std::span<const std::byte>;

inline Bytes as_bytes(std::string_view text) noexcept {
    return std::as_bytes(std::span(text.data(), text.size()));
}

// The low Width bytes of the value.
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

}  // namespace idem::core
