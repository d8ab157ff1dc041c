// Bytes as the core sees them: views that own nothing, and the one way numbers are laid out.
//
// Everything that is digested or put into a token is big-endian and length-prefixed, so that two
// different inputs never become the same bytes and a value means the same on every machine.
// Pure functions; no allocation, nothing thrown.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
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

constexpr std::uint64_t from_big_endian(Bytes in) noexcept {
    std::uint64_t value = 0;
    for (std::byte b : in) value = (value << 8) | std::to_integer<std::uint64_t>(b);
    return value;
}

// Lower-case hexadecimal, two digits a byte; returns where they end. Works with any output iterator
// of char.
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
