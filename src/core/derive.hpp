// Keys that are computed rather than made up: the same input gives the same key.
//
// Every text goes in as its length in bytes (four of them, big-endian) and its UTF-8; the lengths
// keep ('a', 'bc') from ('ab', 'c'), and '' from no part. The key is lower-case hexadecimal.
// Not thread-safe (see sha256.hpp, hmac.hpp); nothing is thrown.
#pragma once

#include "core/digest.hpp"
#include "core/crypto.hpp"

namespace idem::core {

using KeyText = std::array<char, 64>;

// SHA-256, the same everywhere. The parts are UTF-8, below 4 GB each. False when OpenSSL refuses to
// work; out is then undefined.
[[nodiscard]] bool derive_key(std::span<const std::string_view> parts, KeyText& out) noexcept;

// HMAC-SHA-256 over the key digest and the step, for the eyes of others: it gives away neither the
// seed nor the digest. The seed keys more than this, so the message begins with what it is for.
// False when OpenSSL refuses to work; out is then undefined.
[[nodiscard]] bool child_key(const Secret& seed, const Digest& digest, std::string_view step,
                             KeyText& out) noexcept;

}  // namespace idem::core
