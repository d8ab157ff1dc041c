// Lock ids: one AES-128 block, checked against the openssl command.
#include "core/lock_id.hpp"

#include <set>

#include "support.hpp"

using namespace idem::core;
using idem::test::counting;

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

TEST(LockId, DependsOnTheSeedEachTime) {
    const auto first = id(counting<LockSeed>(), vector_digest());
    const auto other = id(counting<LockSeed>(1), vector_digest());
    EXPECT_NE(first, other);
    EXPECT_EQ(id(counting<LockSeed>(), vector_digest()), first);
}

TEST(LockId, SpreadsNeighbouringDigests) {
    std::set<std::uint64_t> ids;
    for (unsigned i = 0; i < 256; ++i) {
        Digest d = vector_digest();
        d.back() = static_cast<std::byte>(i);
        ids.insert(id(counting<LockSeed>(), d));
    }
    EXPECT_EQ(ids.size(), 256U);
}
