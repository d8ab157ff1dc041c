// The token: opaque text that names one attempt of one key.
//
// base64url, without padding, of kind, key digest, attempt and 64 random bits. It is text because
// every driver can pass text back. The random bits are what makes it a token: digest and attempt
// can be computed by anybody who knows the key. The kind says where those bits are kept: an atomic
// claim's with its transaction, a leased one's in the record. In a leased token's text the digest
// is sealed (see seal.hpp); encode() and decode() take it as it comes.
// Pure functions; no allocation, nothing thrown.
#pragma once

#include "core/digest.hpp"

namespace idem::core {

// Also the version of the layout: a new layout gets new kinds.
enum class TokenKind : std::uint8_t { atomic = 1, leased = 2 };

struct Token {
    TokenKind kind;
    Digest digest;
    std::uint32_t attempt;
    std::uint64_t random;

    friend bool operator==(const Token&, const Token&) = default;
};

inline constexpr std::size_t token_bytes = 1 + 16 + 4 + 8;
inline constexpr std::size_t token_length = (token_bytes * 4 + 2) / 3;

using TokenText = std::array<char, token_length>;

TokenText encode(const Token& token) noexcept;

// False for anything that encode() does not produce.
[[nodiscard]] bool decode(std::string_view text, Token& out) noexcept;

}  // namespace idem::core
