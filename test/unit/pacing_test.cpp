// How often to purge, how much at once, and when not to.
#include "core/pacing.hpp"

#include <cstdint>

#include "support.hpp"

using namespace idem::core;

namespace {

constexpr std::int64_t second = usecs_per_second;
constexpr std::int64_t naptime = 10 * second;

}  // namespace

TEST(Pacing, ABacklogGetsTheShortestNap) {
    EXPECT_EQ(next_delay(naptime, naptime, {100, 100, true}), second);
    EXPECT_EQ(next_delay(300 * second, naptime, {1000, 250, true}), second);
}

TEST(Pacing, ManyDeletionsShortenTheNap) {
    EXPECT_EQ(next_delay(naptime, naptime, {1000, 250, false}), naptime / 2);
    EXPECT_EQ(next_delay(second, naptime, {1000, 1000, false}), second);
    EXPECT_EQ(next_delay(naptime, naptime, {1, 1, false}), naptime / 2);
}

TEST(Pacing, FewDeletionsLengthenTheNap) {
    EXPECT_EQ(next_delay(naptime, naptime, {0, 0, false}), 2 * naptime);
    EXPECT_EQ(next_delay(naptime, naptime, {1000, 100, false}), 2 * naptime);
    EXPECT_EQ(next_delay(naptime, naptime, {1'000'000, 0, true}), 2 * naptime);
    EXPECT_EQ(next_delay(40 * second, naptime, {0, 0, false}), 50 * second);
}

TEST(Pacing, InBetweenTheNapStays) {
    EXPECT_EQ(next_delay(7 * second, naptime, {1000, 101, false}), 7 * second);
    EXPECT_EQ(next_delay(7 * second, naptime, {1000, 249, true}), 7 * second);
}

// With a steady load, delays become such that a tenth to a quarter of the records has expired.
TEST(Pacing, TheNapConverges) {
    constexpr std::int64_t lifetime = 300 * second;
    std::int64_t delay = naptime;
    for (int i = 0; i < 20; ++i) {
        const std::int64_t expired = std::min<std::int64_t>(100'000, 100'000 * delay / lifetime);
        delay = next_delay(delay, naptime, {100'000, expired, false});
    }
    EXPECT_GT(delay, lifetime / 10);
    EXPECT_LT(delay, lifetime / 4);
}

TEST(Pacing, AChangedNaptimeTakesEffectAtOnce) {
    EXPECT_EQ(next_delay(300 * second, second, {1000, 150, false}), 5 * second);
    EXPECT_EQ(next_delay(second, 3600 * second, {1000, 150, false}), 360 * second);
    EXPECT_EQ(next_delay(0, 1, {1000, 150, false}), 10'000);
}

TEST(Pacing, ADatabaseWithoutTheExtensionIsPurgedRarely) {
    EXPECT_EQ(absent_delay(0, naptime), second);
    EXPECT_EQ(absent_delay(100 * second, naptime), 200 * second);
    EXPECT_EQ(absent_delay(INT64_MAX, naptime), 300 * second);
}

TEST(Pacing, WithoutAWorkerTheWaitDoubles) {
    std::int64_t wait = 0;
    for (const int seconds : {1, 2, 4, 8, 16, 32, 60, 60}) {
        wait = back_off(wait);
        EXPECT_EQ(wait, seconds * second);
    }
}

TEST(Pacing, BatchesKeepToTheRate) {
    EXPECT_EQ(batch_records(0), 1000);
    EXPECT_EQ(batch_records(1'000'000), 1000);
    EXPECT_EQ(batch_records(500), 50);
    EXPECT_EQ(batch_records(1), 1);
    EXPECT_EQ(batch_delay(50, 500, 0), second / 10);
    EXPECT_EQ(batch_delay(50, 500, 60'000), 40'000);
    EXPECT_EQ(batch_delay(50, 500, second), 0);
    EXPECT_EQ(batch_delay(0, 500, 0), 0);
    EXPECT_EQ(batch_delay(1000, 0, 0), 0);
    EXPECT_EQ(batch_delay(1000, 1, 0), 1000 * second);
}

TEST(Pacing, ClocksAgreeUntilOneIsSet) {
    constexpr Clocks before{800'000'000 * second, 5 * second};
    const auto later = [&](std::int64_t wall, std::int64_t steady) {
        return agree(before, {before.wall + wall, before.steady + steady});
    };
    EXPECT_TRUE(later(0, 0));
    EXPECT_TRUE(later(3600 * second, 3600 * second));
    EXPECT_TRUE(later(60 * second + 30'000, 60 * second));
    EXPECT_FALSE(later(61 * second, 60 * second));
    EXPECT_FALSE(later(59 * second, 60 * second));
    EXPECT_FALSE(later(-3600 * second, 0));
    EXPECT_EQ(jump(before, {before.wall - 3600 * second, before.steady + second}), -3601 * second);
}
