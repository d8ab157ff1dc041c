// Tokens as text, and the random bits that tokens and keys are made of.
//
// Random bits for tokens and keys come from OpenSSL, whose every call costs system calls whatever
// the size. So they are drawn in stock, 512 words at a time. A word is used once and wiped.
#pragma once

#include "core/token.hpp"
#include "pg/server/postgres.hpp"

namespace idem::pg {

std::uint64_t random_bits();

// The token as its holder sees it. The digest of a leased claim is sealed; that of an atomic one is
// only compared with this transaction's own claims, and needs no seal.
core::TokenText token_text(const core::Token& token);

// The reverse. Raises ID005 when the text is NULL or not a token.
core::Token read_token(std::optional<std::string_view> text);

}  // namespace idem::pg
