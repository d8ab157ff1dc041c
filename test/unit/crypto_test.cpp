// The cryptographic primitives, checked against known results. The tests of lock ids in
// digest_test.cpp check AES.
#include "core/crypto.hpp"

#include "support.hpp"

using namespace idem::core;
using idem::test::counting;
using idem::test::hex;

namespace {

std::string sha256(std::string_view text, std::size_t piece) {
    Sha256 digest;
    for (; !text.empty(); text.remove_prefix(std::min(piece, text.size())))
        digest.write(as_bytes(text.substr(0, piece)));
    Hash out{};
    EXPECT_TRUE(digest.finish(out));
    return hex(out);
}

}  // namespace

TEST(Sha256, MatchesTheStandard) {
    // The examples of FIPS 180-4, written in one piece and in many.
    EXPECT_EQ(sha256("", 1), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    for (std::size_t piece : {1U, 2U, 3U, 4U})
        EXPECT_EQ(sha256("abc", piece),
                  "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    for (std::size_t piece : {1U, 7U, 55U, 56U, 100U})
        EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", piece),
                  "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST(Sha256, AbandonsAnUnfinishedMessage) {
    Sha256 abandoned;
    abandoned.write(as_bytes("half a message"));
    EXPECT_EQ(sha256("abc", 3), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

namespace {

std::string code(const Secret& secret, std::string_view text, std::size_t piece) {
    Hmac hmac(secret);
    for (; !text.empty(); text.remove_prefix(std::min(piece, text.size())))
        hmac.write(as_bytes(text.substr(0, piece)));
    Hash out{};
    EXPECT_TRUE(hmac.finish(out));
    return hex(out);
}

// Both were computed with Python's hmac module.
constexpr std::string_view of_abc =
    "f0133729c4163dede81e21cd47839256da58171238c8a0d874397c73b14e1e47";
constexpr std::string_view of_abc_other_key =
    "a21b1f5d4cf4f73a4dd939750f7a066a7f98cc131cb16a6692759021cfab8181";

}  // namespace

TEST(Hmac, MatchesAnotherImplementation) {
    for (std::size_t piece : {1U, 2U, 3U})
        EXPECT_EQ(code(counting<Secret>(), "abc", piece), of_abc);
}

TEST(Hmac, ChangesWithTheKey) {
    EXPECT_EQ(code(counting<Secret>(), "abc", 3), of_abc);
    EXPECT_EQ(code(counting<Secret>(1), "abc", 3), of_abc_other_key);
    EXPECT_EQ(code(counting<Secret>(), "abc", 3), of_abc);
}

TEST(Hmac, DoesNotDependOnTheSizesOfWrites) {
    for (std::size_t size : {0U, 1U, 511U, 512U, 513U, 1024U, 5000U}) {
        const std::string text(size, 'x');
        const std::string whole = code(counting<Secret>(), text, size + 1);
        for (std::size_t piece : {1U, 7U, 511U, 512U, 513U})
            EXPECT_EQ(code(counting<Secret>(), text, piece), whole) << size << " by " << piece;
        EXPECT_NE(code(counting<Secret>(), text + "x", 100), whole) << size;
    }
}

TEST(Hmac, KeepsTheOrderOfShortAndLongWrites) {
    const std::string pieces[] = {"a", std::string(600, 'b'), "c", std::string(513, 'd'), "e"};
    std::string text;
    Hmac hmac(counting<Secret>());
    for (const std::string& piece : pieces) {
        hmac.write(as_bytes(piece));
        text += piece;
    }
    Hash out{};
    ASSERT_TRUE(hmac.finish(out));
    EXPECT_EQ(hex(out), code(counting<Secret>(), text, text.size()));
}

TEST(Hmac, AbandonsAnUnfinishedMessage) {
    for (std::size_t left_behind : {0U, 1U, 511U, 512U, 2000U}) {
        Hmac abandoned(counting<Secret>());
        abandoned.write(as_bytes(std::string(left_behind, 'y')));
        EXPECT_EQ(code(counting<Secret>(), "abc", 3), of_abc) << left_behind;
    }
}
