// Which members are left out: the filter follows a walk through nested objects.
#include "core/path_filter.hpp"

#include <string>
#include <vector>

#include "support.hpp"

using namespace idem::core;

TEST(PathFilter, WithoutPathsNothingIsLeftOut) {
    PathFilter filter({});
    filter.begin_object();
    EXPECT_FALSE(filter.excludes("sent_at"));
    EXPECT_FALSE(filter.excludes(""));
}

TEST(PathFilter, FollowsTheWalk) {
    const std::vector<std::string_view> paths = {"sent_at", "meta.trace_id", "a.b.c"};
    PathFilter filter(paths);
    filter.begin_object();
    EXPECT_TRUE(filter.excludes("sent_at"));
    EXPECT_FALSE(filter.excludes("sent_at_all"));
    EXPECT_FALSE(filter.excludes("sent"));
    EXPECT_FALSE(filter.excludes("trace_id"));
    EXPECT_FALSE(filter.excludes("meta"));
    filter.begin_object();
    EXPECT_TRUE(filter.excludes("trace_id"));
    EXPECT_FALSE(filter.excludes("sent_at"));
    filter.end_object();
    EXPECT_FALSE(filter.excludes("a"));
    filter.begin_object();
    EXPECT_FALSE(filter.excludes("x"));
    filter.begin_object();
    EXPECT_FALSE(filter.excludes("c"));  // a.x.c
    filter.end_object();
    EXPECT_FALSE(filter.excludes("b"));
    filter.begin_object();
    EXPECT_TRUE(filter.excludes("c"));
    filter.end_object();
    filter.end_object();
    EXPECT_TRUE(filter.excludes("sent_at"));  // back at the top
}

TEST(PathFilter, DeepAndLongPlacesAreNotOnTheList) {
    const std::string longest(max_path_bytes, 'k');
    const std::vector<std::string_view> paths = {longest, "a"};
    PathFilter filter(paths);
    filter.begin_object();
    EXPECT_TRUE(filter.excludes(longest));
    EXPECT_FALSE(filter.excludes(longest + "k"));
    for (int depth = 0; depth < 1000; ++depth) {
        filter.begin_object();
        EXPECT_FALSE(filter.excludes("a"));
    }
    for (int depth = 0; depth < 1000; ++depth) filter.end_object();
    EXPECT_TRUE(filter.excludes("a"));
}
