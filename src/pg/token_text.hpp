// Tokens as SQL sees them: a leased one carries its digest sealed.
//
// An atomic token is only ever looked for in this transaction's claims, so its digest needs no
// cover.
#pragma once

#include "core/token.hpp"
#include "pg/server.hpp"

namespace idem::pg {

core::TokenText token_text(const core::Token& token);

// Raises ID005 when the text is NULL or no token.
core::Token read_token(std::optional<std::string_view> text);

}  // namespace idem::pg
