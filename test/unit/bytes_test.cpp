// The byte order of numbers, and views of text.
#include "core/bytes.hpp"

#include "support.hpp"

using namespace idem::core;
using idem::test::hex;

TEST(Bytes, NumbersAreBigEndian) {
    EXPECT_EQ(hex(big_endian<8>(0x0123456789abcdefU)), "0123456789abcdef");
    EXPECT_EQ(hex(big_endian<4>(0x01020304U)), "01020304");
    EXPECT_EQ(hex(big_endian<6>(0x0190b8f38c5eU)), "0190b8f38c5e");
    EXPECT_EQ(hex(big_endian<1>(0xffU)), "ff");
    EXPECT_EQ(hex(big_endian<4>(0)), "00000000");
}

TEST(Bytes, HighBytesThatDoNotFitAreDropped) {
    EXPECT_EQ(hex(big_endian<2>(0x123456U)), "3456");
    EXPECT_EQ(hex(big_endian<8>(static_cast<std::uint64_t>(std::int64_t{-1}))), "ffffffffffffffff");
}

TEST(Bytes, NumbersRoundTrip) {
    for (const std::uint64_t value : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{0x80},
                                      std::uint64_t{0x0102030405060708}, ~std::uint64_t{0}})
        EXPECT_EQ(from_big_endian(big_endian<8>(value)), value);
    EXPECT_EQ(from_big_endian(as_bytes("\xff\xfe")), 0xfffeU);
    EXPECT_EQ(from_big_endian({}), 0U);
}

TEST(Bytes, TextIsTakenUnchanged) {
    EXPECT_EQ(hex(as_bytes(std::string_view("a\0\xc3\xa9", 4))), "6100c3a9");
    EXPECT_TRUE(as_bytes("").empty());
}
