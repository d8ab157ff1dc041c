// The watermark's rule, with its ends.
#include "core/sequence.hpp"

#include <limits>

#include "support.hpp"

using namespace idem::core;

namespace {

constexpr std::int64_t lowest = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t highest = std::numeric_limits<std::int64_t>::max();

}  // namespace

TEST(Sequence, TheFirstOfASourceMayHaveAnyNumber) {
    for (std::int64_t seq : {lowest, std::int64_t{-1}, std::int64_t{0}, std::int64_t{7}, highest})
        for (bool contiguous : {false, true})
            EXPECT_EQ(step(std::nullopt, seq, contiguous), Step::ahead);
}

TEST(Sequence, WhatIsNotBeyondTheWatermarkIsBehind) {
    for (bool contiguous : {false, true}) {
        EXPECT_EQ(step(7, 7, contiguous), Step::behind);
        EXPECT_EQ(step(7, 6, contiguous), Step::behind);
        EXPECT_EQ(step(7, lowest, contiguous), Step::behind);
        EXPECT_EQ(step(highest, highest, contiguous), Step::behind);
        EXPECT_EQ(step(lowest, lowest, contiguous), Step::behind);
    }
}

TEST(Sequence, TheNextIsAhead) {
    for (bool contiguous : {false, true}) {
        EXPECT_EQ(step(7, 8, contiguous), Step::ahead);
        EXPECT_EQ(step(-1, 0, contiguous), Step::ahead);
        EXPECT_EQ(step(lowest, lowest + 1, contiguous), Step::ahead);
        EXPECT_EQ(step(highest - 1, highest, contiguous), Step::ahead);
    }
}

TEST(Sequence, AGapCountsOnlyWhereNoneMayBe) {
    EXPECT_EQ(step(7, 9, false), Step::ahead);
    EXPECT_EQ(step(7, 9, true), Step::gap);
    EXPECT_EQ(step(lowest, highest, false), Step::ahead);
    EXPECT_EQ(step(lowest, highest, true), Step::gap);
}
