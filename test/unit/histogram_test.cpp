// Histograms: which bucket a duration is in, and what the buckets tell about quantiles.
#include "core/histogram.hpp"

#include <limits>

#include "support.hpp"

using namespace idem::core;

TEST(Histogram, ABoundIsWithinItsBucket) {
    for (std::size_t i = 0; i < bounded_buckets; ++i) {
        EXPECT_EQ(bucket_of(upper_bound(i)), i);
        EXPECT_EQ(bucket_of(upper_bound(i) + 1), i + 1);
    }
    EXPECT_EQ(upper_bound(0), 1);
    EXPECT_EQ(upper_bound(bounded_buckets - 1), std::int64_t{1} << 38);
}

TEST(Histogram, EveryDurationHasABucket) {
    EXPECT_EQ(bucket_of(0), 0u);
    EXPECT_EQ(bucket_of(-1), 0u);
    EXPECT_EQ(bucket_of(std::numeric_limits<std::int64_t>::min()), 0u);
    EXPECT_EQ(bucket_of(3), 2u);
    EXPECT_EQ(bucket_of(1'000'000), 20u);
    EXPECT_EQ(bucket_of(std::numeric_limits<std::int64_t>::max()), bucket_count - 1);
}

TEST(Histogram, NothingHasNoQuantile) {
    EXPECT_EQ(quantile({}, 50), std::nullopt);
    EXPECT_EQ(count_of({}), 0);
}

TEST(Histogram, AQuantileIsTheLowestBoundThatSuffices) {
    BucketCounts counts{};
    counts[3] = 90;
    counts[10] = 9;
    counts[20] = 1;
    EXPECT_EQ(count_of(counts), 100);
    EXPECT_EQ(quantile(counts, 50), 8);
    EXPECT_EQ(quantile(counts, 90), 8);
    EXPECT_EQ(quantile(counts, 91), 1024);
    EXPECT_EQ(quantile(counts, 99), 1024);
    EXPECT_EQ(quantile(counts, 100), 1 << 20);
}

TEST(Histogram, OneDurationIsEveryQuantile) {
    BucketCounts counts{};
    counts[0] = 1;
    EXPECT_EQ(quantile(counts, 1), 1);
    EXPECT_EQ(quantile(counts, 99), 1);
}

TEST(Histogram, BeyondTheBoundsNoQuantileIsKnown) {
    BucketCounts counts{};
    counts[5] = 1;
    counts[bounded_buckets] = 1;
    EXPECT_EQ(quantile(counts, 50), 32);
    EXPECT_EQ(quantile(counts, 51), std::nullopt);
}

TEST(Histogram, CountsDoNotOverflow) {
    BucketCounts counts{};
    counts.fill(std::numeric_limits<std::int64_t>::max() / 100 / static_cast<int>(bucket_count));
    EXPECT_EQ(quantile(counts, 100), std::nullopt);
    EXPECT_EQ(quantile(counts, 97), upper_bound(38));
}
