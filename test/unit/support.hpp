// What the core's unit tests share.
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

// 00 01 02 ...: a secret or a seed with nothing special about it.
template <class Array>
Array counting(unsigned from = 0) {
    Array out{};
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(from + i);
    return out;
}

}  // namespace idem::test
