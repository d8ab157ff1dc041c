// The notation of paths, the translation of other notations, and the filter that follows a walk.
#include "core/path.hpp"

#include <string>
#include <vector>

#include "support.hpp"

using namespace idem::core;

namespace {

std::string translated(std::string_view path) {
    return std::string(translated_path(path).view());
}

std::string plain(std::string_view path) {
    return std::string(plain_path(path).view());
}

}  // namespace

TEST(PathNotation, NamesJoinedByDotsAreAccepted) {
    for (const char* path :
         {"card", "card.number", "größe", "$schema", "$ref.x", "a.$", "@id", "a-b", "a:b", "a b",
          "x1", "1x", "a*", "it's", "a\\b", "a>b", "#tag", "-", "~"}) {
        EXPECT_EQ(path_fault(path), PathFault::none) << path;
        EXPECT_EQ(plain(path), path);
    }
}

TEST(PathNotation, OtherNotationsAreTranslated) {
    struct Case {
        const char* path;
        PathFault fault;
        const char* ours;
    };
    for (const Case& c :
         {Case{"$.card.number", PathFault::root, "card.number"},
          Case{"$", PathFault::root, ""},
          Case{"lax $.card.number", PathFault::root, "card.number"},
          Case{"strict $.card", PathFault::root, "card"},
          Case{"$.items[*].token", PathFault::root, "items.token"},
          Case{"$..number", PathFault::root, "number"},
          Case{"$[\"card\"]['number']", PathFault::bracket, "card.number"},
          Case{"/card/number", PathFault::slash, "card.number"},
          Case{"#/card/number", PathFault::slash, "card.number"},
          Case{"card/number", PathFault::slash, "card.number"},
          Case{"/items/0/token", PathFault::slash, "items.token"},
          Case{"/a~1b/c~0d", PathFault::slash, "\"a/b\".c~d"},
          Case{"/", PathFault::slash, ""},
          Case{"card->number", PathFault::arrow, "card.number"},
          Case{"card -> 'number'", PathFault::arrow, "card.number"},
          Case{"items->0->>'token'", PathFault::arrow, "items.token"},
          Case{"card#>>'{number}'", PathFault::brace, "card.number"},
          Case{"card#>number", PathFault::arrow, "card.number"},
          Case{"card[0].x", PathFault::bracket, "card.x"},
          Case{"card[\"a.b\"]", PathFault::bracket, "card.\"a.b\""},
          Case{"[0]", PathFault::bracket, ""},
          Case{"{card,number}", PathFault::brace, "card.number"},
          Case{"items.*.token", PathFault::wildcard, "items.token"},
          Case{"**.token", PathFault::wildcard, "token"},
          Case{"items.0.token", PathFault::index, "items.token"},
          Case{"items.-1", PathFault::index, "items"},
          Case{".card.number", PathFault::empty_step, "card.number"},
          Case{"card..number", PathFault::empty_step, "card.number"},
          Case{"card.", PathFault::empty_step, "card"},
          Case{"", PathFault::empty_step, ""},
          Case{"card.number, items.token", PathFault::comma, "card.number.items.token"},
          Case{"card.\"number", PathFault::quote, "card.number"},
          Case{"\"card\"number", PathFault::quote, "card.number"},
          Case{"card\"number\"", PathFault::quote, "card.number"}}) {
        EXPECT_EQ(path_fault(c.path), c.fault) << c.path;
        EXPECT_EQ(translated(c.path), c.ours) << c.path;
        EXPECT_EQ(plain(c.path), c.path);
        EXPECT_TRUE(*c.ours == '\0' || path_fault(c.ours) == PathFault::none) << c.ours;
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
        EXPECT_EQ(path_fault(quoted.view()), PathFault::none) << name;
        EXPECT_EQ(plain(quoted.view()), name);
    }
}

// Tries every short path of the characters that have a meaning in any notation.
TEST(PathNotation, EveryTranslationIsAccepted) {
    const std::string characters = "ab.$/[]{},\"\\*0->#' ";
    std::string path;
    const auto check = [&] {
        const std::string ours = translated(path);
        EXPECT_TRUE(ours.empty() || path_fault(ours) == PathFault::none) << path << ": " << ours;
        EXPECT_EQ(plain(quoted_name(path)), path);
    };
    const auto each = [&](const auto& self, int length) -> void {
        check();
        if (length == 0) return;
        for (const char c : characters) {
            path.push_back(c);
            self(self, length - 1);
            path.pop_back();
        }
    };
    each(each, 4);
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
