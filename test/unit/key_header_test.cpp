// The value of an Idempotency-Key header. test/data/idempotency_key.json has more values, which
// sql/http.sql and the tests of the clients read.
#include "core/key_header.hpp"

#include "support.hpp"

using namespace idem::core;

namespace {

std::string key_in(std::string_view header) {
    const KeyHeader read = read_key_header(header);
    EXPECT_EQ(read.fault, HeaderFault::none) << header;
    EXPECT_TRUE(read.sent) << header;
    EXPECT_EQ(read.position, header.size()) << header;
    return std::string(read.key());
}

struct Fault {
    const char* header;
    HeaderFault fault;
    std::size_t position;
};

}  // namespace

TEST(KeyHeader, NoKeyIsSent) {
    for (const char* header : {"", " ", "\t", " \t "}) EXPECT_FALSE(read_key_header(header).sent);
}

TEST(KeyHeader, AStringAndATokenAreTheSameKey) {
    EXPECT_EQ(key_in("\"order-1\""), "order-1");
    EXPECT_EQ(key_in("order-1"), "order-1");
    EXPECT_EQ(key_in("\"\\\"\\\\\""), "\"\\");
    EXPECT_EQ(key_in("\\\\"), "\\\\");
}

TEST(KeyHeader, EveryCharacter) {
    for (int i = 1; i < 256; ++i) {
        const std::string c(1, static_cast<char>(i));
        const bool printable = i >= ' ' && i <= '~';
        const bool special = c == "\"" || c == "\\";
        EXPECT_EQ(read_key_header("\"a" + c + "b\"").fault == HeaderFault::none,
                  printable && !special)
            << i;
        EXPECT_EQ(read_key_header("\"\\" + c + "\"").fault == HeaderFault::none, special) << i;
        EXPECT_EQ(read_key_header("a" + c + "b").fault == HeaderFault::none,
                  printable && c.find_first_of(" \",;") == std::string::npos)
            << i;
    }
}

TEST(KeyHeader, BlanksAround) {
    const KeyHeader read = read_key_header(" \t\"a \" \t");
    EXPECT_EQ(read.fault, HeaderFault::none);
    EXPECT_EQ(read.key(), "a ");
}

TEST(KeyHeader, ParametersAreIgnored) {
    for (const char* header :
         {"\"k\";v", "\"k\"; v=1", "\"k\";a=-1.125;b=\"x;\\\"\";c=tok:en/1;d=:YQ==:;e=?1;*"})
        EXPECT_EQ(key_in(header), "k");
}

TEST(KeyHeader, LongKeys) {
    EXPECT_EQ(key_in(std::string(255, 'k')), std::string(255, 'k'));
    EXPECT_EQ(read_key_header(std::string(256, 'k')).key_size, 256U);
    EXPECT_EQ(read_key_header("\"" + std::string(100'000, 'k') + "\"").key_size, 100'000U);
    EXPECT_EQ(read_key_header("\"\"").key_size, 0U);
    EXPECT_TRUE(read_key_header("\"\"").sent);
}

TEST(KeyHeader, FaultsAndWhereTheyAre) {
    for (const Fault& expected :
         {Fault{"a b", HeaderFault::token_character, 1},
          Fault{" a,b", HeaderFault::token_character, 2},
          Fault{"a\xc3\xa4", HeaderFault::token_character, 1},
          Fault{"\"a\xc3\xa4\"", HeaderFault::string_character, 2},
          Fault{"\"a\tb\"", HeaderFault::string_character, 2},
          Fault{"\"a\\b\"", HeaderFault::escape, 3}, Fault{"\"a", HeaderFault::open_string, 2},
          Fault{"\"a\\", HeaderFault::open_string, 3}, Fault{"\"", HeaderFault::open_string, 1},
          Fault{"\"a\" \"b\"", HeaderFault::after_string, 3},
          Fault{"\"a\", \"b\"", HeaderFault::after_string, 3},
          Fault{"\"a\" ;v", HeaderFault::after_string, 3},
          Fault{"\"a\";", HeaderFault::parameter, 4}, Fault{"\"a\";V", HeaderFault::parameter, 4},
          Fault{"\"a\";v=", HeaderFault::parameter, 6},
          Fault{"\"a\";v=1,2", HeaderFault::parameter, 7}}) {
        const KeyHeader read = read_key_header(expected.header);
        EXPECT_EQ(read.fault, expected.fault) << expected.header;
        EXPECT_EQ(read.position, expected.position) << expected.header;
        EXPECT_TRUE(read.sent);
    }
}

TEST(KeyHeader, NumbersOfParametersHaveLimits) {
    const auto accepts = [](const std::string& number) {
        return read_key_header("\"k\";v=" + number).fault == HeaderFault::none;
    };
    for (const char* good : {"0", "-0", "999999999999999", "-999999999999999", "1.1", "-1.125",
                             "123456789012.125", "007"})
        EXPECT_TRUE(accepts(good)) << good;
    for (const char* bad : {"-", "1.", ".1", "1.1234", "1000000000000000", "1234567890123.1",
                            "1.1.1", "1e1", "+1", "--1"})
        EXPECT_FALSE(accepts(bad)) << bad;
}
