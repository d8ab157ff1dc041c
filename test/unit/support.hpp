// Helpers for the unit tests of core.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "core/bytes.hpp"

namespace idem::test {

inline std::string hex(core::Bytes bytes) {
    constexpr char digits[] = "0123456789abcdef";
    std::string out;
    for (std::byte b : bytes) {
        out += digits[std::to_integer<unsigned>(b) >> 4];
        out += digits[std::to_integer<unsigned>(b) & 0xf];
    }
    return out;
}

// An arbitrary secret or seed: 00 01 02 ...
template <class Array>
Array counting(unsigned from = 0) {
    Array out{};
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(from + i);
    return out;
}

}  // namespace idem::test
