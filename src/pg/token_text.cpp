#include "pg/token_text.hpp"

#include "pg/report.hpp"
#include "pg/secret.hpp"

namespace idem::pg {

core::TokenText token_text(const core::Token& token) {
    core::Token shown = token;
    if (token.kind == core::TokenKind::leased &&
        !core::seal(secrets().seal_key, token.digest, shown.digest))
        report::crypto_failure();
    return core::encode(shown);
}

core::Token read_token(std::optional<std::string_view> text) {
    core::Token token;
    if (!text) report::not_claimed("The token is null.");
    if (!core::decode(*text, token))
        report::not_claimed("The text is not a token of idem.claim().");
    const core::Digest sealed = token.digest;
    if (token.kind == core::TokenKind::leased &&
        !core::unseal(secrets().seal_key, sealed, token.digest))
        report::crypto_failure();
    return token;
}

}  // namespace idem::pg
