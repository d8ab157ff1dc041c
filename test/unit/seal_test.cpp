// Sealed digests: opened again with the same key only.
#include "core/seal.hpp"

#include "support.hpp"

using namespace idem::core;
using idem::test::counting;

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

TEST(Seal, OpensWithItsKey) {
    const auto digest = counting<Digest>(0x40);
    EXPECT_NE(sealed(counting<SealKey>(), digest), digest);
    EXPECT_EQ(opened(counting<SealKey>(), sealed(counting<SealKey>(), digest)), digest);
}

TEST(Seal, OpensToSomethingElseWithAnother) {
    const auto digest = counting<Digest>(0x40);
    const Digest with_first = sealed(counting<SealKey>(), digest);
    EXPECT_NE(sealed(counting<SealKey>(1), digest), with_first);
    EXPECT_NE(opened(counting<SealKey>(1), with_first), digest);
    EXPECT_EQ(opened(counting<SealKey>(), with_first), digest);
}
