// The names and values of stored headers.
#include "core/header.hpp"

#include "support.hpp"

using namespace idem::core;

TEST(Header, NamesAreTokens) {
    for (const char* name : {"Set-Cookie", "x", "0", "!#$%&'*+-.^_`|~", "ETag"})
        EXPECT_TRUE(is_header_name(name)) << name;
    for (const char* name : {"", " ", "Set-Cookie ", " Set-Cookie", "Set Cookie", "a:", "X\r\nY",
                             "a\t", "\"a\"", "a,b", "(a)", "a/b", "a;b", "a=b", "{a}", "\xc3\xa4"})
        EXPECT_FALSE(is_header_name(name)) << name;
}

TEST(Header, EveryCharacterOfAName) {
    int accepted = 0;
    for (int i = 0; i < 256; ++i) accepted += is_header_name(std::string(1, static_cast<char>(i)));
    EXPECT_EQ(accepted, 10 + 26 + 26 + 15);
}

TEST(Header, ValuesHaveNoControlCharacters) {
    for (int i = 0; i < 256; ++i) {
        const std::string value = std::string("a") + static_cast<char>(i) + "b";
        EXPECT_EQ(is_header_value(value), i >= 32 && i != 127) << i;
    }
    for (const char* value : {"", " ", "a=1; Path=/", "\xc3\xbc"})
        EXPECT_TRUE(is_header_value(value)) << value;
}
