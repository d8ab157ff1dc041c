// The limit of new claims per minute: exact counts and waits, also when clocks misbehave.
#include "core/rate.hpp"

#include <cstdint>
#include <limits>
#include <random>

#include "support.hpp"

using namespace idem::core;

namespace {

constexpr std::int64_t noon = 800'000'000'000'000;
constexpr std::int32_t most = std::numeric_limits<std::int32_t>::max();

// The number of claims that are admitted at one moment.
std::int64_t burst(Bucket& bucket, std::int32_t per_minute, std::int64_t now) {
    std::int64_t admitted = 0;
    while (charge(bucket, per_minute, now) == 0) ++admitted;
    return admitted;
}

}  // namespace

TEST(Rate, AFullBucketAdmitsExactlyTheLimit) {
    for (std::int32_t per_minute : {1, 2, 3, 7, 59, 60, 61, 999, 1'000'003}) {
        Bucket bucket;
        EXPECT_EQ(burst(bucket, per_minute, noon), per_minute);
        EXPECT_EQ(burst(bucket, per_minute, noon), 0);
    }
}

TEST(Rate, AnEmptyBucketAdmitsOneClaimPerInterval) {
    Bucket bucket;
    ASSERT_EQ(burst(bucket, 60, noon), 60);
    EXPECT_EQ(charge(bucket, 60, noon), usecs_per_second);
    EXPECT_EQ(charge(bucket, 60, noon + 999'999), 1);
    EXPECT_EQ(charge(bucket, 60, noon + 1'000'000), 0);
    EXPECT_EQ(charge(bucket, 60, noon + 1'000'000), usecs_per_second);
    EXPECT_EQ(burst(bucket, 60, noon + 4'000'000), 3);
}

TEST(Rate, ABucketIsFullAfterAMinute) {
    for (std::int32_t per_minute : {1, 7, 60, 1'000'003}) {
        Bucket bucket;
        ASSERT_EQ(burst(bucket, per_minute, noon), per_minute);
        EXPECT_FALSE(is_idle(bucket, noon + usecs_per_minute - 1));
        EXPECT_TRUE(is_idle(bucket, noon + usecs_per_minute));
        EXPECT_EQ(burst(bucket, per_minute, noon + usecs_per_minute), per_minute);
    }
}

// With a limit of 7 per minute, one claim is admitted per 8,571,428.57 microseconds.
TEST(Rate, FractionsOfAMicrosecondAreKept) {
    for (std::int32_t per_minute : {7, 11, 13, 9'973}) {
        Bucket bucket;
        std::int64_t now = noon;
        std::int64_t admitted = burst(bucket, per_minute, now);
        const std::int64_t end = noon + 3 * usecs_per_minute;
        std::mt19937 random(7);
        while (now < end) {
            now = std::min(end, now + static_cast<std::int64_t>(random() % 9'000'000));
            admitted += burst(bucket, per_minute, now);
        }
        EXPECT_EQ(admitted, 4 * std::int64_t{per_minute}) << per_minute;
    }
}

// More than one claim per microsecond: the interval is only a fraction.
TEST(Rate, LargeLimitsAreExact) {
    Bucket bucket{noon + usecs_per_minute, 0, 90'000'000};
    std::int64_t admitted = 0;
    for (int i = 1; i <= 1000; ++i) admitted += burst(bucket, 90'000'000, noon + i);
    EXPECT_EQ(admitted, 1500);
}

TEST(Rate, TheWaitIsExact) {
    for (std::int32_t per_minute : {1, 7, 60, 61, 999'983, most}) {
        Bucket bucket;
        std::int64_t now = noon;
        if (per_minute == most) {
            bucket = {noon + usecs_per_minute, 0, most};
        } else {
            ASSERT_EQ(burst(bucket, per_minute, now), per_minute);
        }
        for (int i = 0; i < 100; ++i) {
            const std::int64_t wait = charge(bucket, per_minute, now);
            ASSERT_GT(wait, 0);
            EXPECT_LE(wait, usecs_per_minute / per_minute + 1);
            EXPECT_GT(charge(bucket, per_minute, now + wait - 1), 0);
            now += wait;
            ASSERT_EQ(charge(bucket, per_minute, now), 0);
            burst(bucket, per_minute, now);
        }
    }
}

TEST(Rate, ARefusalCostsNothing) {
    Bucket bucket;
    ASSERT_EQ(burst(bucket, 2, noon), 2);
    for (int i = 0; i < 1000; ++i) EXPECT_EQ(charge(bucket, 2, noon), 30 * usecs_per_second);
    EXPECT_EQ(charge(bucket, 2, noon + 30 * usecs_per_second), 0);
}

TEST(Rate, ReadingsOutOfOrderDoNotExceedTheLimit) {
    Bucket bucket;
    std::mt19937 random(3);
    std::int64_t admitted = 0;
    for (int i = 0; i < 10'000; ++i) {
        const auto late = static_cast<std::int64_t>(random() % 2'000'000);
        admitted += charge(bucket, 100, noon - late) == 0 ? 1 : 0;
    }
    admitted += burst(bucket, 100, noon);
    // Two seconds before noon, the earliest reading, three more claims can be admitted by noon.
    EXPECT_GE(admitted, 100);
    EXPECT_LE(admitted, 103);
}

TEST(Rate, AClockSetBackCostsAtMostAMinute) {
    for (std::int64_t back : {std::int64_t{1}, usecs_per_minute, 2 * usecs_per_minute,
                              2 * usecs_per_minute + 1, usecs_per_day, noon + noon}) {
        Bucket bucket;
        ASSERT_EQ(burst(bucket, 60, noon), 60);
        const std::int64_t now = noon - back;
        const std::int64_t wait = charge(bucket, 60, now);
        EXPECT_GT(wait, 0) << "a clock set back must not admit";
        EXPECT_LE(wait, usecs_per_minute + usecs_per_second);
        EXPECT_EQ(charge(bucket, 60, now + wait), 0);
    }
}

TEST(Rate, AClockSetForwardFillsTheBucketOnce) {
    Bucket bucket;
    ASSERT_EQ(burst(bucket, 60, noon), 60);
    EXPECT_EQ(burst(bucket, 60, noon + 1000 * usecs_per_day), 60);
}

TEST(Rate, AChangedLimitKeepsTheProportion) {
    Bucket bucket;
    for (int i = 0; i < 30; ++i) ASSERT_EQ(charge(bucket, 60, noon), 0);
    EXPECT_EQ(burst(bucket, 600, noon), 300);
    EXPECT_EQ(burst(bucket, 6, noon), 0);
    EXPECT_EQ(charge(bucket, 6, noon), 10 * usecs_per_second);

    // A fraction in the old unit is rounded up, against the tenant.
    Bucket sevenths;
    ASSERT_EQ(charge(sevenths, 7, noon), 0);
    EXPECT_EQ(burst(sevenths, 7'000'000, noon), 5'999'999);
}

TEST(Rate, DoesNotOverflow) {
    constexpr auto last = std::numeric_limits<std::int64_t>::max();
    constexpr auto first = std::numeric_limits<std::int64_t>::min();
    for (std::int64_t now : {first, first + 1, std::int64_t{0}, last - 1, last})
        for (std::int64_t before : {first, std::int64_t{0}, last - 4 * usecs_per_minute, last})
            for (std::int32_t per_minute : {1, most}) {
                Bucket bucket{before, per_minute - 1, per_minute};
                if (before == last) bucket.fraction = 0;
                const std::int64_t wait = charge(bucket, per_minute, now);
                EXPECT_GE(wait, 0);
                EXPECT_LE(wait, 2 * usecs_per_minute);
            }
    Bucket bucket;
    EXPECT_EQ(burst(bucket, 3, first), 3);
}
