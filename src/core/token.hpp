// Tokens: an opaque text that identifies one attempt of one key.
//
// A token is base64url, without padding, of kind, key digest, attempt number and 64 random bits; if
// the record is not in the common table, also of the number of its table. It is text because every
// driver can pass text. Digest and attempt number can be computed or guessed from the key, so only
// the random bits prove that the bearer made the claim. They are compared with those that the
// claim's transaction keeps in memory (atomic) or that the record has (leased). In the text of a
// leased token the digest is sealed (see digest.hpp); encode() and decode() leave that to the
// caller.
//
// Pure functions; no allocation, no exceptions.
#pragma once

#include "core/digest.hpp"

namespace idem::core {

// What the holder may do with it. The text tells the layout, too: each layout has its own kinds.
enum class TokenKind : std::uint8_t { atomic = 1, leased = 2 };

struct Token {
    TokenKind kind;
    Digest digest;
    std::uint32_t attempt;
    std::uint64_t random;
    // Of a leased token, the table of its record; 0: the common one.
    std::uint32_t table = 0;

    friend bool operator==(const Token&, const Token&) = default;
};

// Digits of a token without a table and of one with it: of 29 and 33 bytes.
inline constexpr std::size_t token_length = 39;
inline constexpr std::size_t max_token_length = 44;

struct TokenText {
    std::array<char, max_token_length> digits;
    std::size_t size;

    std::string_view view() const noexcept { return {digits.data(), size}; }
};

TokenText encode(const Token& token) noexcept;

// False for every text that encode() does not produce.
[[nodiscard]] bool decode(std::string_view text, Token& out) noexcept;

}  // namespace idem::core
