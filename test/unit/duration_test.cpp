// Intervals as a fixed number of microseconds, and when to retry.
#include "core/duration.hpp"

#include <cstdint>
#include <limits>

#include "support.hpp"

using namespace idem::core;

TEST(Duration, PartsHaveFixedLengths) {
    EXPECT_EQ(fixed_duration(0, 0, 5), 5);
    EXPECT_EQ(fixed_duration(0, 1, 0), 86'400'000'000);
    EXPECT_EQ(fixed_duration(1, 0, 0), 30 * usecs_per_day);
    EXPECT_EQ(fixed_duration(1, -29, 7), usecs_per_day + 7);
    EXPECT_EQ(fixed_duration(-1, 0, 0), -30 * usecs_per_day);
}

TEST(Duration, IsAtMostAThousandYears) {
    EXPECT_EQ(fixed_duration(0, 365'000, 0), max_duration);
    EXPECT_EQ(fixed_duration(0, 365'000, 1), std::nullopt);
    EXPECT_EQ(fixed_duration(0, 365'001, 0), std::nullopt);
    EXPECT_EQ(fixed_duration(0, 365'001, -usecs_per_day), max_duration);
    EXPECT_EQ(fixed_duration(0, -365'000, -1), std::nullopt);
}

TEST(Duration, DoesNotOverflow) {
    constexpr auto most32 = std::numeric_limits<std::int32_t>::max();
    constexpr auto least32 = std::numeric_limits<std::int32_t>::min();
    constexpr auto most64 = std::numeric_limits<std::int64_t>::max();
    constexpr auto least64 = std::numeric_limits<std::int64_t>::min();
    for (auto months : {most32, least32, 0})
        for (auto days : {most32, least32, 0})
            for (auto usecs : {most64, least64, std::int64_t{0}}) {
                const bool nothing = months == 0 && days == 0 && usecs == 0;
                EXPECT_EQ(fixed_duration(months, days, usecs).has_value(), nothing);
            }
}

TEST(RetryAfter, IsTheAgeOfTheClaimWithinLimits) {
    EXPECT_EQ(retry_after(-5), 100'000);
    EXPECT_EQ(retry_after(0), 100'000);
    EXPECT_EQ(retry_after(2'000'000), 2'000'000);
    EXPECT_EQ(retry_after(max_duration), 10'000'000);
}

TEST(RetryAfter, IsAtMostTheRestOfTheLease) {
    EXPECT_EQ(retry_after(2'000'000, 60'000'000), 2'000'000);
    EXPECT_EQ(retry_after(2'000'000, 500'000), 500'000);
    EXPECT_EQ(retry_after(2'000'000, -7), 0);
}
