// The key digest: vectors computed with another SHA-256, and what must tell identities apart.
#include "core/digest.hpp"

#include <set>

#include "support.hpp"

using namespace idem::core;
using idem::test::hex;

namespace {

std::string digest(std::int64_t scope, std::string_view tenant, std::string_view key) {
    Digest out{};
    EXPECT_TRUE(key_digest({scope, tenant, key}, out));
    return hex(out);
}

}  // namespace

TEST(Digest, IsSha256OfLengthPrefixedParts) {
    EXPECT_EQ(digest(1, "", "order-4711"), "013e52646f095d09d286dc1f209b447b");
}

TEST(Digest, KeepsTheTimeOfTimeOrderedKeysInFront) {
    EXPECT_EQ(digest(7, "acme", "0190b8f3-8c5e-7d2a-9b1c-4f5e6a7b8c9d"),
              "0190b8f38c5e5e2c01564d038b24daa1");
    EXPECT_EQ(digest(7, "acme", "01J2WF7330Q8XYZABCDEFGHJKM"), "0190b8f38c60d3eb58775e18369a13e3");
}

TEST(Digest, OfLaterKeysIsGreater) {
    const auto early = digest(1, "", "0190b8f3-8c5e-7fff-bfff-ffffffffffff");
    const auto late = digest(1, "", "0190b8f3-8c5f-7000-8000-000000000000");
    EXPECT_LT(early, late);
}

TEST(Digest, TellsIdentitiesApart) {
    const std::set<std::string> all = {
        digest(1, "a", "bc"),
        digest(1, "ab", "c"),
        digest(1, "", "abc"),
        digest(1, "abc", "x"),
        digest(2, "a", "bc"),
        digest(-1, "a", "bc"),
        digest(1, "A", "bc"),
        digest(1, "", "0190b8f3-8c5e-7d2a-9b1c-4f5e6a7b8c9d"),
        digest(1, "", "0190B8F3-8C5E-7D2A-9B1C-4F5E6A7B8C9D"),  // byte for byte, not by value
    };
    EXPECT_EQ(all.size(), 9U);
}

TEST(Digest, OfASourceIsThatOfNoKey) {
    Digest source{};
    ASSERT_TRUE(source_digest({1, "", "order-4711"}, source));
    EXPECT_EQ(hex(source), "29741175462ce806cbb15ef99116bb38");
    EXPECT_NE(hex(source), digest(1, "", "order-4711"));
}

TEST(Digest, OfASourceCarriesNoTime) {
    Digest source{};
    ASSERT_TRUE(source_digest({7, "acme", "0190b8f3-8c5e-7d2a-9b1c-4f5e6a7b8c9d"}, source));
    EXPECT_NE(hex(source).substr(0, 12), "0190b8f38c5e");
}

TEST(Digest, TellsSourcesApart) {
    std::set<std::string> all;
    for (const Identity& source : {Identity{1, "a", "bc"}, Identity{1, "ab", "c"},
                                   Identity{1, "", "abc"}, Identity{2, "a", "bc"}}) {
        Digest out{};
        ASSERT_TRUE(source_digest(source, out));
        all.insert(hex(out));
    }
    EXPECT_EQ(all.size(), 4U);
}
