// Tokens: decode() reads what encode() writes, and refuses everything else.
#include "core/token.hpp"

#include "support.hpp"

using namespace idem::core;
using idem::test::counting;

namespace {

const Token sample{TokenKind::atomic, counting<Digest>(0xf0), 0x01020304, 0xfedcba9876543210};

std::string text_of(const Token& token) {
    return std::string(encode(token).view());
}

}  // namespace

TEST(Token, RoundTrip) {
    Token out{};
    for (const Token& token :
         {sample, Token{TokenKind::atomic, {}, 0, 0},
          Token{TokenKind::leased, counting<Digest>(), ~0U, ~std::uint64_t{0}},
          Token{TokenKind::leased, counting<Digest>(), ~0U, ~std::uint64_t{0}, 1},
          Token{TokenKind::leased, counting<Digest>(), 1, 2, ~0U}}) {
        const std::string text = text_of(token);
        EXPECT_EQ(text.size(), 44U);
        EXPECT_EQ(text.find_first_of("+/="), std::string::npos);
        ASSERT_TRUE(decode(text, out));
        EXPECT_EQ(out, token);
    }
}

TEST(Token, IsBase64UrlOfItsParts) {
    // printf '01f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff01020304fedcba987654321000000000' | xxd -r -p |
    // base64
    EXPECT_EQ(text_of(sample), "AfDx8vP09fb3-Pn6-_z9_v8BAgME_ty6mHZUMhAAAAAA");
}

TEST(Token, NamesTheTableOfItsRecord) {
    // printf '02f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff01020304fedcba987654321000012345' | xxd -r -p |
    // base64
    Token elsewhere = sample;
    elsewhere.kind = TokenKind::leased;
    elsewhere.table = 0x12345;
    EXPECT_EQ(text_of(elsewhere), "AvDx8vP09fb3-Pn6-_z9_v8BAgME_ty6mHZUMhAAASNF");
}

TEST(Token, KindsDiffer) {
    Token leased = sample;
    leased.kind = TokenKind::leased;
    EXPECT_NE(text_of(leased), text_of(sample));
}

TEST(Token, EveryOtherTextIsRefusedOrAnotherToken) {
    Token elsewhere = sample;
    elsewhere.kind = TokenKind::leased;
    elsewhere.table = 1;
    for (const Token& token : {sample, elsewhere}) {
        const std::string good = text_of(token);
        for (std::size_t i = 0; i < good.size(); ++i)
            for (int c = 0; c < 256; ++c) {
                std::string text = good;
                text[i] = static_cast<char>(c);
                Token out{};
                if (text != good && decode(text, out)) {
                    EXPECT_NE(out, token) << text;
                    EXPECT_EQ(text_of(out), text);
                }
            }
    }
}

TEST(Token, MalformedTextsAreRefused) {
    Token out{};
    const std::string good = text_of(sample);
    for (const std::string& text :
         {std::string(), good.substr(1), good.substr(0, 39) /* without its table */, good + "A",
          good + "=", std::string(44, '\0'), std::string(44, ' '), "+" + good.substr(1),
          "B" + good.substr(1) /* unknown kinds */, "AA" + good.substr(2), "Aw" + good.substr(2)})
        EXPECT_FALSE(decode(text, out)) << text;
}
