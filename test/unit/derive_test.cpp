// Derived keys: vectors computed with other implementations, and what must tell inputs apart.
#include "core/derive.hpp"

#include <set>
#include <vector>

#include "support.hpp"

using namespace idem::core;
using idem::test::counting;

namespace {

std::string derived(const std::vector<std::string_view>& parts) {
    KeyText out{};
    EXPECT_TRUE(derive_key(parts, out));
    return {out.data(), out.size()};
}

}  // namespace

TEST(DeriveKey, IsSha256OfLengthPrefixedParts) {
    // printf '\0\0\0\5order\0\0\0\00442\303\274' | sha256sum
    EXPECT_EQ(derived({"order", "42\xc3\xbc"}),
              "f174319a395f61738490f0c94771afe3d8c2ba55069ffb519750f33ff4b44db9");
    // printf '\0\0\0\0' | sha256sum
    EXPECT_EQ(derived({""}), "df3f619804a92fdb4057192dc43dd748ea778adc52bc498ce80524c014b81119");
}

TEST(DeriveKey, TellsPartsApart) {
    const std::set<std::string> all = {
        derived({"a", "bc"}),
        derived({"ab", "c"}),
        derived({"abc"}),
        derived({"abc", ""}),
        derived({"", "abc"}),
        derived({"a", "b", "c"}),
        derived({"a", "", "bc"}),
        derived({"A", "bc"}),
        derived({"bc", "a"}),
        derived({"a,bc"}),
        derived({""}),
        derived({"", ""}),
        derived({"a,", "bc"}),
        derived({std::string_view("a\0bc", 4)}),
    };
    EXPECT_EQ(all.size(), 14U);
}

TEST(DeriveKey, TakesPartsOfAnyLength) {
    const std::string large(3'000'000, 'x');
    EXPECT_NE(derived({large}), derived({std::string_view(large).substr(1)}));
}

namespace {

std::string child(const Secret& seed, const Digest& digest, std::string_view step) {
    KeyText out{};
    EXPECT_TRUE(child_key(seed, digest, step, out));
    return {out.data(), out.size()};
}

}  // namespace

TEST(ChildKey, IsHmacSha256) {
    // Computed with the hmac and hashlib modules of Python.
    EXPECT_EQ(child(counting<Secret>(), counting<Digest>(0xa0), "charge"),
              "de00cf7e2dcfe2dbbc862545b749334a139cd61a396e9cd8186fdd9172a0f30e");
}

TEST(ChildKey, TellsSeedKeyAndStepApart) {
    const std::set<std::string> all = {
        child(counting<Secret>(), counting<Digest>(), "charge"),
        child(counting<Secret>(1), counting<Digest>(), "charge"),
        child(counting<Secret>(), counting<Digest>(1), "charge"),
        child(counting<Secret>(), counting<Digest>(), "refund"),
        child(counting<Secret>(), counting<Digest>(), "charge "),
        child(counting<Secret>(), counting<Digest>(), "CHARGE"),
    };
    EXPECT_EQ(all.size(), 6U);
}

TEST(ChildKey, IsTheSameEveryTime) {
    const std::string first = child(counting<Secret>(), counting<Digest>(), "charge");
    EXPECT_NE(child(counting<Secret>(9), counting<Digest>(), "charge"), first);
    EXPECT_EQ(child(counting<Secret>(), counting<Digest>(), "charge"), first);
}
