// The notation of paths, and the filter that follows a walk.
#include "core/path.hpp"

#include <string>
#include <vector>

#include "support.hpp"

using namespace idem::core;

namespace {

std::string plain(std::string_view path) {
    return std::string(plain_path(path).view());
}

}  // namespace

TEST(PathNotation, NamesAreJoinedByDots) {
    for (const char* path :
         {"card", "card.number", "größe", "$schema", "$ref.x", "a.$", "@id", "a-b", "a:b", "a b",
          "x1", "1x", "a*", "it's", "a\\b", "a>b", "#tag", "-", "~"}) {
        EXPECT_EQ(plain(path), path);
    }
}

// Nothing else has a meaning. idem_internal.path_fault() refuses these paths.
TEST(PathNotation, OtherNotationsStayAsTheyAre) {
    for (const char* path :
         {"$.card.number", "card[0].x", "{card,number}", "card->number", "/card/number",
          "card.number, items.token", "card.\"number", "\"card\"number", "card\"number\"", "\"a\\",
          "items.*.token", "items.0.token", "", ".card", "card..number", "card."})
        EXPECT_EQ(plain(path), path);
}

TEST(PathNotation, EveryNameCanBeQuoted) {
    EXPECT_EQ(plain("\"/card/number\""), "/card/number");
    EXPECT_EQ(plain("\"$\".\"a/b\".c"), "$.a/b.c");
    EXPECT_EQ(plain("years.\"2024\""), "years.2024");
    EXPECT_EQ(plain("\"a\\\"b\\\\c\""), "a\"b\\c");
    EXPECT_EQ(plain("a.\"\""), "a.");
    EXPECT_EQ(plain("\"a.b\""), "a.b");
    // Names up to the maximum length.
    for (const std::string& name :
         {std::string("/"), std::string("x[1]"), std::string("\\"), std::string("\""),
          std::string("\\\""), std::string(max_path_bytes, '"'),
          std::string(max_path_bytes, '/')}) {
        const PathText quoted = quoted_name(name);
        EXPECT_EQ(plain(quoted.view()), name);
    }
}

// Tries every short name of the characters that have a meaning in any notation.
TEST(PathNotation, EveryShortNameCanBeQuoted) {
    const std::string characters = "ab.$/[]{},\"\\*0->#' ";
    std::string name;
    const auto check = [&] { EXPECT_EQ(plain(quoted_name(name)), name); };
    const auto each = [&](const auto& self, int length) -> void {
        check();
        if (length == 0) return;
        for (const char c : characters) {
            name.push_back(c);
            self(self, length - 1);
            name.pop_back();
        }
    };
    each(each, 3);
}

TEST(PathFilter, ExcludesNothingWithoutPaths) {
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

TEST(PathFilter, DoesNotExcludeDeepOrLongPaths) {
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
