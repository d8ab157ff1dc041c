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
    if (!text) report::no_token();
    if (!core::decode(*text, token)) report::malformed_token();
    const core::Digest sealed = token.digest;
    if (token.kind == core::TokenKind::leased &&
        !core::unseal(secrets().seal_key, sealed, token.digest))
        report::crypto_failure();
    return token;
}

}  // namespace idem::pg
