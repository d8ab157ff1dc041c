// UUIDv7: the RFC's own example, the bits that are fixed, and an order that no clock can break.
#include "core/uuid.hpp"

#include "core/key.hpp"
#include "support.hpp"

using namespace idem::core;

namespace {

std::string text_of(std::uint64_t tick, std::uint64_t random) {
    const UuidText text = uuid_v7(tick, random);
    return {text.data(), text.size()};
}

}  // namespace

TEST(Uuid, IsTheExampleOfTheRfc) {
    // RFC 9562, A.6: 2022-02-22 14:22:22 EST, rand_a cc3, rand_b 18c4dc0c0c07398f.
    const std::uint64_t tick = std::uint64_t{0x017F22E279B0} << 12 | 0xcc3;
    EXPECT_EQ(text_of(tick, 0x18c4dc0c0c07398f), "017f22e2-79b0-7cc3-98c4-dc0c0c07398f");
}

TEST(Uuid, FixesVersionAndVariantWhateverTheOtherBits) {
    EXPECT_EQ(text_of(0, 0), "00000000-0000-7000-8000-000000000000");
    EXPECT_EQ(text_of(~std::uint64_t{0}, ~std::uint64_t{0}),
              "ffffffff-ffff-7fff-bfff-ffffffffffff");
}

TEST(Uuid, CarriesTheMillisecondAndItsFraction) {
    EXPECT_EQ(uuid_tick(0), 0U);
    EXPECT_EQ(uuid_tick(1'000), 1U << 12);
    EXPECT_EQ(uuid_tick(1'500), (1U << 12) + 2048);
    EXPECT_EQ(uuid_tick(1'999), (1U << 12) + 4091);
    EXPECT_EQ(uuid_tick(2'000), 2U << 12);
    EXPECT_EQ(uuid_tick(-1), 0U);
    const std::uint64_t tick = uuid_tick(1'645'557'742'000'123);
    EXPECT_EQ(embedded_time(text_of(tick, 42)), 1'645'557'742'000U);
}

TEST(Uuid, NeverHandsOutATickTwiceNorGoesBack) {
    const std::uint64_t first = next_uuid_tick(0, 5'000'999);
    EXPECT_EQ(first, uuid_tick(5'000'999));
    EXPECT_EQ(next_uuid_tick(first, 5'000'999), first + 1);
    EXPECT_EQ(next_uuid_tick(first, 0), first + 1) << "the clock was set back";
    EXPECT_EQ(next_uuid_tick(first, 5'001'000), uuid_tick(5'001'000));
    // A whole millisecond's ticks in one: the count carries into the time.
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
