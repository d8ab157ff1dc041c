// The order of version numbers.
#include "core/version.hpp"

#include <array>

#include "support.hpp"

using namespace idem::core;

TEST(Version, OrderIsThatOfTheReleases) {
    constexpr std::array ordered = {"",
                                    "0.99.0",
                                    "unpackaged",
                                    "1",
                                    "1.0.0-",
                                    "1.0.0-beta2",
                                    "1.0.0-rc1",
                                    "1.0.0-rc2",
                                    "1.0.0-rc10",
                                    "1.0.0",
                                    "1.0.0+custom1",
                                    "1.0.1",
                                    "1.2.0",
                                    "1.10.0",
                                    "2.0.0-rc1",
                                    "10.0.0",
                                    "18446744073709551616.0"};
    for (std::size_t i = 0; i < ordered.size(); ++i)
        for (std::size_t j = 0; j < ordered.size(); ++j)
            EXPECT_EQ(compare_versions(ordered[i], ordered[j]), i <=> j)
                << ordered[i] << " and " << ordered[j];
}

TEST(Version, LeadingZerosDoNotCount) {
    EXPECT_EQ(compare_versions("1.0.01", "1.0.1"), std::strong_ordering::equal);
    EXPECT_EQ(compare_versions("1.0.0", "1.0.00-rc1"), std::strong_ordering::greater);
}
