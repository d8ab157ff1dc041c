// Capacity planning: the worked example of docs/guide.md, rounding and limits.
#include "core/capacity.hpp"

#include <limits>

#include "core/duration.hpp"
#include "support.hpp"

using namespace idem::core;

namespace {

constexpr std::int64_t second = usecs_per_second;
constexpr std::int64_t most_records = std::numeric_limits<std::int64_t>::max();

}  // namespace

TEST(Capacity, WorkedExample) {
    const std::int64_t window = retention_window(10 * second, 90 * second, 30 * second, 5 * second);
    EXPECT_EQ(window, 135 * second);
    EXPECT_EQ(records_needed(80, window, 0.2), 12'960);
    EXPECT_NEAR(collision_probability(12'960, 128), 2.47e-31, 0.005e-31);
}

TEST(RetentionWindow, DoesNotOverflow) {
    EXPECT_EQ(retention_window(max_duration, max_duration, max_duration, max_duration),
              4 * max_duration);
    EXPECT_EQ(retention_window(0, 0, 0, 0), 0);
}

TEST(RecordsNeeded, IsRoundedUpExactly) {
    EXPECT_EQ(records_needed(1, second, 0.1), 2);
    EXPECT_EQ(records_needed(0.001, second, 0), 1);
    EXPECT_EQ(records_needed(1, 1, 0), 1);  // a microsecond
    EXPECT_EQ(records_needed(1'000'000, second + 1, 0), 1'000'001);
    // Products that are integers in decimal, whatever their binary approximations are.
    for (int rate = 1; rate <= 1000; ++rate)
        for (int tenths = 0; tenths <= 20; ++tenths) {
            const std::int64_t exact = (std::int64_t{rate} * 7 * (10 + tenths) + 9) / 10;
            ASSERT_EQ(records_needed(rate, 7 * second, tenths / 10.0), exact)
                << rate << " * 7 * (1 + " << tenths << "/10)";
            ASSERT_EQ(records_needed(rate / 10.0, 70 * second, tenths / 10.0), exact);
        }
}

TEST(RecordsNeeded, IsZeroWithoutClaimsOrTtl) {
    EXPECT_EQ(records_needed(0, 135 * second, 0.2), 0);
    EXPECT_EQ(records_needed(80, 0, 0.2), 0);
}

TEST(RecordsNeeded, IsNothingBeyondTheLargestNumber) {
    EXPECT_TRUE(records_needed(4.6e18, 2 * second, 0));
    EXPECT_FALSE(records_needed(0x1p63, second, 1));
    EXPECT_FALSE(records_needed(1e300, max_duration, 1e300)) << "infinite intermediate result";
    EXPECT_FALSE(records_needed(std::numeric_limits<double>::max(), 2 * second, 0));
}

TEST(CollisionProbability, IsPreciseWhenTiny) {
    EXPECT_EQ(collision_probability(2, 128), 0x1p-128);
    EXPECT_EQ(collision_probability(3, 128), 0x3p-128);
    EXPECT_EQ(collision_probability(2, 1000), 0x1p-1000);
    EXPECT_EQ(collision_probability(12'960, 128), 83'974'320 * 0x1p-128);
    EXPECT_GT(collision_probability(most_records, 1074), 0);
}

TEST(CollisionProbability, IsFromZeroToOne) {
    EXPECT_EQ(collision_probability(0, 0), 0);
    EXPECT_EQ(collision_probability(1, 0), 0);
    EXPECT_EQ(collision_probability(2, 0), 1);
    EXPECT_EQ(collision_probability(2, 1), 0.5);
    EXPECT_EQ(collision_probability(3, 1), 1) << "1.5 is not a probability";
    EXPECT_EQ(collision_probability(most_records, 64), 1);
    EXPECT_EQ(collision_probability(most_records, std::numeric_limits<std::int32_t>::max()), 0);
}
