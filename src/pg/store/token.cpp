#include "pg/store/token.hpp"

#include "pg/server/report.hpp"
#include "pg/store/secret.hpp"

namespace idem::pg {
namespace {

constinit std::array<std::uint64_t, 512> stock{};
constinit std::size_t left = 0;

}  // namespace

std::uint64_t random_bits() {
    if (left == 0) {
        if (!pg_strong_random(stock.data(), sizeof stock)) report::crypto_failure();
        left = stock.size();
    }
    Assert(left <= stock.size());
    --left;
    const std::uint64_t drawn = stock[left];
    stock[left] = 0;
    return drawn;
}

core::TokenText token_text(const core::Token& token) {
    Assert(token.attempt >= 1);
    core::Token shown = token;
    if (token.kind == core::TokenKind::leased &&
        !core::seal(secrets().seal_key, token.digest, shown.digest))
        report::crypto_failure();
    return core::encode(shown);
}

core::Token read_token(std::optional<std::string_view> text) {
    core::Token token;
    if (!text)
        report::not_claimed("The token is null.",
                            "A replay has no token. Test \"claimed\" first, and return the stored "
                            "answer if it is false.");
    if (!core::decode(*text, token))
        report::not_claimed("The text is not a token of idem.claim().",
                            "Pass the column \"token\" of the claim's result, unchanged.");
    const core::Digest sealed = token.digest;
    if (token.kind == core::TokenKind::leased &&
        !core::unseal(secrets().seal_key, sealed, token.digest))
        report::crypto_failure();
    return token;
}

}  // namespace idem::pg
