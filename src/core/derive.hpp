// Keys that are computed rather than made up: the same input gives the same key, everywhere.
//
// SHA-256 over the parts, each as its length in bytes (four of them, big-endian) and its UTF-8, in
// lower-case hexadecimal. The lengths keep ('a', 'bc') from ('ab', 'c'), and '' from no part.
// Not thread-safe (see sha256.hpp); nothing is thrown.
#pragma once

#include "core/bytes.hpp"

namespace idem::core {

using KeyText = std::array<char, 64>;

// The parts are UTF-8, below 4 GB each. False when OpenSSL refuses to work; out is then undefined.
[[nodiscard]] bool derive_key(std::span<const std::string_view> parts, KeyText& out) noexcept;

}  // namespace idem::core
