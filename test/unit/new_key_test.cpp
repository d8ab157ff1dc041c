// UUIDv7 and child keys. Expected values come from the RFC and from other implementations.
#include "core/digest.hpp"

#include <set>
#include <vector>

#include "core/key.hpp"
#include "support.hpp"

using namespace idem::core;
using idem::test::counting;

namespace {

std::string text_of(std::uint64_t tick, std::uint64_t random) {
    const UuidText text = uuid_v7(tick, random);
    return {text.data(), text.size()};
}

}  // namespace

TEST(Uuid, MatchesTheExampleOfTheRfc) {
    // RFC 9562, A.6: 2022-02-22 14:22:22 EST, rand_a cc3, rand_b 18c4dc0c0c07398f.
    const std::uint64_t tick = std::uint64_t{0x017F22E279B0} << 12 | 0xcc3;
    EXPECT_EQ(text_of(tick, 0x18c4dc0c0c07398f), "017f22e2-79b0-7cc3-98c4-dc0c0c07398f");
}

TEST(Uuid, AlwaysHasVersionAndVariant) {
    EXPECT_EQ(text_of(0, 0), "00000000-0000-7000-8000-000000000000");
    EXPECT_EQ(text_of(~std::uint64_t{0}, ~std::uint64_t{0}),
              "ffffffff-ffff-7fff-bfff-ffffffffffff");
}

TEST(Uuid, ContainsTheMillisecondAndItsFraction) {
    EXPECT_EQ(uuid_tick(0), 0U);
    EXPECT_EQ(uuid_tick(1'000), 1U << 12);
    EXPECT_EQ(uuid_tick(1'500), (1U << 12) + 2048);
    EXPECT_EQ(uuid_tick(1'999), (1U << 12) + 4091);
    EXPECT_EQ(uuid_tick(2'000), 2U << 12);
    EXPECT_EQ(uuid_tick(-1), 0U);
    const std::uint64_t tick = uuid_tick(1'645'557'742'000'123);
    EXPECT_EQ(embedded_time(text_of(tick, 42)), 1'645'557'742'000U);
}

TEST(Uuid, TicksAlwaysIncrease) {
    const std::uint64_t first = next_uuid_tick(0, 5'000'999);
    EXPECT_EQ(first, uuid_tick(5'000'999));
    EXPECT_EQ(next_uuid_tick(first, 5'000'999), first + 1);
    EXPECT_EQ(next_uuid_tick(first, 0), first + 1) << "the clock was set back";
    EXPECT_EQ(next_uuid_tick(first, 5'001'000), uuid_tick(5'001'000));
    // More ticks than a millisecond has: the fraction carries into the time.
    std::uint64_t tick = first;
    std::string before = text_of(tick, ~std::uint64_t{0});
    for (int i = 0; i < 5000; ++i) {
        tick = next_uuid_tick(tick, 5'000'999);
        const std::string after = text_of(tick, 0);
        ASSERT_LT(before, after);
        before = after;
    }
    EXPECT_GT(tick >> 12, first >> 12);
}

// Child keys

namespace {

std::string child(const Secret& seed, const Digest& digest, std::string_view step) {
    KeyText out{};
    EXPECT_TRUE(child_key(seed, digest, step, out));
    return {out.data(), out.size()};
}

}  // namespace

TEST(ChildKey, IsHmacSha256) {
    // Computed with Python's hmac and hashlib modules.
    EXPECT_EQ(child(counting<Secret>(), counting<Digest>(0xa0), "charge"),
              "de00cf7e2dcfe2dbbc862545b749334a139cd61a396e9cd8186fdd9172a0f30e");
}

TEST(ChildKey, DiffersForDifferentSeedsKeysAndSteps) {
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

TEST(ChildKey, IsRepeatable) {
    const std::string first = child(counting<Secret>(), counting<Digest>(), "charge");
    EXPECT_NE(child(counting<Secret>(9), counting<Digest>(), "charge"), first);
    EXPECT_EQ(child(counting<Secret>(), counting<Digest>(), "charge"), first);
}
