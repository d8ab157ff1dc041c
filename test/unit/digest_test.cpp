// Digests, lock ids and sealed digests. Expected values were computed with other implementations.
#include "core/digest.hpp"

#include <set>

#include "support.hpp"

using namespace idem::core;
using idem::test::counting;
using idem::test::hex;

namespace {

std::string digest_text(std::int64_t scope, std::string_view tenant, std::string_view key) {
    Digest out{};
    EXPECT_TRUE(key_digest({scope, tenant, key}, out));
    return hex(out);
}

}  // namespace

TEST(Digest, IsSha256OfLengthPrefixedParts) {
    EXPECT_EQ(digest_text(1, "", "order-4711"), "013e52646f095d09d286dc1f209b447b");
}

TEST(Digest, BeginsWithTheTimeInTheKey) {
    EXPECT_EQ(digest_text(7, "acme", "0190b8f3-8c5e-7d2a-9b1c-4f5e6a7b8c9d"),
              "0190b8f38c5e5e2c01564d038b24daa1");
    EXPECT_EQ(digest_text(7, "acme", "01J2WF7330Q8XYZABCDEFGHJKM"),
              "0190b8f38c60d3eb58775e18369a13e3");
}

TEST(Digest, OfALaterKeyIsGreater) {
    const auto early = digest_text(1, "", "0190b8f3-8c5e-7fff-bfff-ffffffffffff");
    const auto late = digest_text(1, "", "0190b8f3-8c5f-7000-8000-000000000000");
    EXPECT_LT(early, late);
}

TEST(Digest, DiffersForDifferentKeys) {
    const std::set<std::string> all = {
        digest_text(1, "a", "bc"),
        digest_text(1, "ab", "c"),
        digest_text(1, "", "abc"),
        digest_text(1, "abc", "x"),
        digest_text(2, "a", "bc"),
        digest_text(-1, "a", "bc"),
        digest_text(1, "A", "bc"),
        digest_text(1, "", "0190b8f3-8c5e-7d2a-9b1c-4f5e6a7b8c9d"),
        digest_text(1, "", "0190B8F3-8C5E-7D2A-9B1C-4F5E6A7B8C9D"),  // compared byte for byte
    };
    EXPECT_EQ(all.size(), 9U);
}

TEST(Digest, OfASourceDiffersFromThatOfAKey) {
    Digest source{};
    ASSERT_TRUE(source_digest({1, "", "order-4711"}, source));
    EXPECT_EQ(hex(source), "29741175462ce806cbb15ef99116bb38");
    EXPECT_NE(hex(source), digest_text(1, "", "order-4711"));
}

TEST(Digest, OfASourceContainsNoTime) {
    Digest source{};
    ASSERT_TRUE(source_digest({7, "acme", "0190b8f3-8c5e-7d2a-9b1c-4f5e6a7b8c9d"}, source));
    EXPECT_NE(hex(source).substr(0, 12), "0190b8f38c5e");
}

TEST(Digest, DiffersForDifferentSources) {
    std::set<std::string> all;
    for (const QualifiedKey& source : {QualifiedKey{1, "a", "bc"}, QualifiedKey{1, "ab", "c"},
                                       QualifiedKey{1, "", "abc"}, QualifiedKey{2, "a", "bc"}}) {
        Digest out{};
        ASSERT_TRUE(source_digest(source, out));
        all.insert(hex(out));
    }
    EXPECT_EQ(all.size(), 4U);
}

// Lock ids. The expected value was computed with the openssl command.

namespace {

std::uint64_t id(const LockSeed& seed, const Digest& digest) {
    std::uint64_t out = 0;
    EXPECT_TRUE(lock_id(seed, digest, out));
    return out;
}

constexpr Digest vector_digest() {
    Digest d{};
    for (std::size_t i = 0; i < d.size(); ++i) d[i] = static_cast<std::byte>(i * 0x11);
    return d;
}

}  // namespace

TEST(LockId, IsTheFirstHalfOfTheBlock) {
    EXPECT_EQ(id(counting<LockSeed>(), vector_digest()), 0x69c4e0d86a7b0430U);
}

TEST(LockId, ChangesWithTheSeed) {
    const auto first = id(counting<LockSeed>(), vector_digest());
    const auto other = id(counting<LockSeed>(1), vector_digest());
    EXPECT_NE(first, other);
    EXPECT_EQ(id(counting<LockSeed>(), vector_digest()), first);
}

TEST(LockId, DiffersForSimilarDigests) {
    std::set<std::uint64_t> ids;
    for (unsigned i = 0; i < 256; ++i) {
        Digest d = vector_digest();
        d.back() = static_cast<std::byte>(i);
        ids.insert(id(counting<LockSeed>(), d));
    }
    EXPECT_EQ(ids.size(), 256U);
}

// Sealed digests

namespace {

Digest sealed(const SealKey& key, const Digest& digest) {
    Digest out{};
    EXPECT_TRUE(seal(key, digest, out));
    return out;
}

Digest opened(const SealKey& key, const Digest& digest) {
    Digest out{};
    EXPECT_TRUE(unseal(key, digest, out));
    return out;
}

}  // namespace

TEST(Seal, IsOpenedWithItsKey) {
    const auto digest = counting<Digest>(0x40);
    EXPECT_NE(sealed(counting<SealKey>(), digest), digest);
    EXPECT_EQ(opened(counting<SealKey>(), sealed(counting<SealKey>(), digest)), digest);
}

TEST(Seal, IsNotOpenedWithAnotherKey) {
    const auto digest = counting<Digest>(0x40);
    const Digest with_first = sealed(counting<SealKey>(), digest);
    EXPECT_NE(sealed(counting<SealKey>(1), digest), with_first);
    EXPECT_NE(opened(counting<SealKey>(1), with_first), digest);
    EXPECT_EQ(opened(counting<SealKey>(), with_first), digest);
}
