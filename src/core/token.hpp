// Tokens: an opaque text that identifies one attempt of one key.
//
// A token is base64url of kind, key digest, attempt number, 64 random bits and the number of the
// record's table. It is text because every driver can pass text. Digest and attempt number can be
// computed or guessed from the key, so only the random bits prove that the bearer made the claim.
// They are compared with the bits that the claim's transaction keeps in memory (atomic) or that the
// record has (leased). In the text of a leased token the digest is sealed (see digest.hpp);
// encode() and decode() leave that to the caller.
#pragma once

#include "core/digest.hpp"

namespace idem::core {

// What the holder may do with it. Another layout gets kinds of its own.
enum class TokenKind : std::uint8_t { atomic = 1, leased = 2 };

struct Token {
    TokenKind kind;
    Digest digest;
    std::uint32_t attempt;
    std::uint64_t random;
    std::uint32_t table = 0;  // of a leased claim's record; 0: the common one

    friend bool operator==(const Token&, const Token&) = default;
};

struct TokenText {
    std::array<char, 44> digits;

    std::string_view view() const noexcept { return {digits.data(), digits.size()}; }
};

TokenText encode(const Token& token) noexcept;

// False for every text that encode() does not produce.
[[nodiscard]] bool decode(std::string_view text, Token& out) noexcept;

}  // namespace idem::core
