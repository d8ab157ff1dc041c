// Tokens: an opaque text that identifies one attempt of one key.
//
// A token is base64url, without padding, of kind, key digest, attempt number and 64 random bits. It
// is text because every driver can pass text. Digest and attempt number can be computed or guessed
// from the key, so only the random bits prove that the bearer made the claim. They are compared
// with those that the claim's transaction keeps in memory (atomic) or that the record has (leased).
// In the text of a leased token the digest is sealed (see digest.hpp); encode() and decode() leave
// that to the caller.
//
// Pure functions; no allocation, no exceptions.
#pragma once

#include "core/digest.hpp"

namespace idem::core {

// Also identifies the layout: a new layout gets new kinds.
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

// False for every text that encode() does not produce.
[[nodiscard]] bool decode(std::string_view text, Token& out) noexcept;

}  // namespace idem::core
