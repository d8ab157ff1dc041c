// SHA-256: the standard's vectors, in one piece and in many.
#include "core/sha256.hpp"

#include "support.hpp"

using namespace idem::core;
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

TEST(Sha256, IsTheStandards) {
    // FIPS 180-4, examples.
    EXPECT_EQ(sha256("", 1), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    for (std::size_t piece : {1U, 2U, 3U, 4U})
        EXPECT_EQ(sha256("abc", piece),
                  "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    for (std::size_t piece : {1U, 7U, 55U, 56U, 100U})
        EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", piece),
                  "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST(Sha256, StartsOverWhateverWasBegun) {
    Sha256 abandoned;
    abandoned.write(as_bytes("half a message"));
    EXPECT_EQ(sha256("abc", 3), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}
