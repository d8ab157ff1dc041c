// Histograms: which bucket a duration is in.
#include "core/duration.hpp"

#include <limits>

#include "support.hpp"

using namespace idem::core;

TEST(Histogram, ABoundIsWithinItsBucket) {
    for (std::size_t i = 0; i < bounded_buckets; ++i) {
        const std::int64_t bound = std::int64_t{1} << i;
        EXPECT_EQ(bucket_of(bound), i);
        EXPECT_EQ(bucket_of(bound + 1), i + 1);
    }
}

TEST(Histogram, EveryDurationHasABucket) {
    EXPECT_EQ(bucket_of(0), 0u);
    EXPECT_EQ(bucket_of(-1), 0u);
    EXPECT_EQ(bucket_of(std::numeric_limits<std::int64_t>::min()), 0u);
    EXPECT_EQ(bucket_of(3), 2u);
    EXPECT_EQ(bucket_of(1'000'000), 20u);
    EXPECT_EQ(bucket_of(std::numeric_limits<std::int64_t>::max()), bucket_count - 1);
}
