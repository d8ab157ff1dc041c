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

TEST(PathNotation, NamesJoinedByDotsAreAccepted) {
    for (const char* path :
         {"card", "card.number", "größe", "$schema", "$ref.x", "a.$", "@id", "a-b", "a:b", "a b",
          "x1", "1x", "a*", "it's", "a\\b", "a>b", "#tag", "-", "~"}) {
        EXPECT_EQ(path_fault(path), nullptr) << path;
        EXPECT_EQ(plain(path), path);
    }
}

TEST(PathNotation, OtherNotationsAreRefused) {
    struct Case {
        const char* fault;
        std::vector<const char*> paths;
    };
    for (const auto& [fault, paths] :
         {Case{"begins with \"$\", as in JSONPath",
               {"$.card.number", "$", "lax $.a", "strict $.a"}},
          Case{"has a subscript", {"card[0].x", "[0]", "$[\"card\"]['number']"}},
          Case{"has braces, as in an array of text", {"{card,number}", "card#>>'{number}'"}},
          Case{"has an operator", {"card->number", "card -> 'number'", "card#>number"}},
          Case{"has a slash, as in JSON Pointer", {"/card/number", "#/card", "card/number", "/"}},
          Case{"has a comma, as in a list of paths", {"card.number, items.token"}},
          Case{"has a double quote that does not enclose the whole name of a member",
               {"card.\"number", "\"card\"number", "card\"number\"", "\"a\\"}},
          Case{"has a wildcard", {"items.*.token", "**.token"}},
          Case{"has a number in place of a name", {"items.0.token", "items.-1"}},
          Case{"has an empty name", {"", ".card", "card..number", "card."}}})
        for (const char* path : paths) {
            EXPECT_STREQ(path_fault(path), fault) << path;
            EXPECT_EQ(plain(path), path);
        }
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
        EXPECT_EQ(path_fault(quoted.view()), nullptr) << name;
        EXPECT_EQ(plain(quoted.view()), name);
    }
}

TEST(PathNotation, PathsOfMembersAreWrittenAsTheyAreRead) {
    const auto path = [](std::string_view object, std::string_view name) {
        const auto written = member_path(object, name);
        return written ? std::string(written->view()) : "too long";
    };
    EXPECT_EQ(path("", "card"), "card");
    EXPECT_EQ(path("card", "number"), "card.number");
    EXPECT_EQ(path("card", "$"), "card.$");
    EXPECT_EQ(path("", "$"), "\"$\"");
    EXPECT_EQ(path("", "a.b"), "\"a.b\"");
    EXPECT_EQ(path("\"a.b\"", "2024"), "\"a.b\".\"2024\"");
    EXPECT_EQ(path("", ""), "\"\"");
    EXPECT_EQ(path("\"\"", "a\"b"), "\"\".\"a\\\"b\"");
    const std::string longest(max_path_bytes, 'k');
    EXPECT_EQ(path("", longest), longest);
    EXPECT_EQ(path("a", longest), "too long");
    EXPECT_EQ(path("", longest + "k"), "too long");
    EXPECT_EQ(path("a", std::string(max_path_bytes - 2, 'k')).size(), max_path_bytes);
    EXPECT_EQ(path("a", std::string(max_path_bytes - 1, 'k')), "too long");
    EXPECT_EQ(path("", std::string(max_path_bytes - 2, '/')).size(), max_path_bytes);
    EXPECT_EQ(path("", std::string(max_path_bytes - 1, '/')), "too long");
    EXPECT_EQ(path("", std::string(200, '"')), "too long");
}

// Tries every short name of the characters that have a meaning in any notation.
TEST(PathNotation, EveryNameHasAPath) {
    const std::string characters = "ab.$/[]{},\"\\*0->#' ";
    std::string name;
    const auto check = [&] {
        EXPECT_EQ(plain(quoted_name(name)), name);
        for (const char* object : {"", "a"}) {
            const auto path = member_path(object, name);
            ASSERT_TRUE(path) << name;
            EXPECT_EQ(path_fault(*path), nullptr) << name;
            EXPECT_EQ(plain(*path), *object == '\0' ? name : "a." + name);
        }
    };
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
