// Lower-case hexadecimal: how digests become text.
//
// Pure functions; no allocation, nothing thrown.
#pragma once

#include "core/bytes.hpp"

namespace idem::core {

// Writes two digits a byte and returns where they end. Works with any output iterator of char.
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
