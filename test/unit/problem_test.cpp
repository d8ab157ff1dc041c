// SQLSTATEs as HTTP problems: every one of idem's own, every class with a meaning, and the rest.
#include "core/problem.hpp"

#include <set>

#include "core/sqlstate.hpp"
#include "support.hpp"

using namespace idem::core;

namespace {

int status(std::string_view sqlstate) {
    return problem_of(sqlstate).status;
}

}  // namespace

TEST(Sqlstate, Shape) {
    for (const char* good : {"00000", "ID001", "ZZZZZ", "P0001"}) EXPECT_TRUE(is_sqlstate(good));
    for (const char* bad : {"", "0000", "000000", "p0001", "P 001", "P000-",
                            "\xc3\x9c"
                            "001"})
        EXPECT_FALSE(is_sqlstate(bad)) << bad;
    EXPECT_EQ(class_of("40P01"), "40");
}

TEST(Problem, OfIdemsOwnErrors) {
    const std::pair<const char*, int> expected[] = {{"ID001", 409}, {"ID002", 422}, {"ID003", 409},
                                                    {"ID004", 409}, {"ID005", 409}, {"ID006", 500},
                                                    {"ID007", 400}, {"ID008", 400}, {"ID009", 429},
                                                    {"ID010", 412}, {"ID011", 428}, {"ID012", 409}};
    std::set<std::string_view> types;
    std::set<std::string_view> titles;
    for (const auto& [sqlstate, code] : expected) {
        const Problem problem = problem_of(sqlstate);
        EXPECT_EQ(problem.status, code) << sqlstate;
        EXPECT_TRUE(problem.type.starts_with("urn:idem:problem:")) << sqlstate;
        types.insert(problem.type);
        titles.insert(problem.title);
    }
    EXPECT_EQ(types.size(), std::size(expected));
    EXPECT_EQ(titles.size(), std::size(expected));
    EXPECT_EQ(problem_of("ID001").type, "urn:idem:problem:in_progress");
}

TEST(Problem, ThatARetryMayCure) {
    for (const char* sqlstate : {"08006", "40001", "40P01", "53100", "53300", "55P03", "57014",
                                 "57P01", "58030", "72000", "25006"}) {
        const Problem problem = problem_of(sqlstate);
        EXPECT_EQ(problem.status, 503) << sqlstate;
        EXPECT_EQ(problem.type, "about:blank");
        EXPECT_EQ(problem.title, "Service Unavailable");
    }
}

TEST(Problem, OfTheStandardsErrors) {
    EXPECT_EQ(status("00000"), 200);
    EXPECT_EQ(status("42501"), 403);
    EXPECT_EQ(status("22023"), 400);
    EXPECT_EQ(status("22P02"), 400);
    for (const char* sqlstate :
         {"01000", "02000", "00001", "23505", "25001", "42601", "42P01", "54000", "P0001", "XX000",
          "ID000", "ID013", "ID999", "IDEMP", "ZZZZZ"})
        EXPECT_EQ(status(sqlstate), 500) << sqlstate;
    EXPECT_EQ(problem_of("ID013").type, "about:blank");
    EXPECT_EQ(problem_of("XX000").title, "Internal Server Error");
    EXPECT_EQ(problem_of("22023").title, "Bad Request");
    EXPECT_EQ(problem_of("42501").title, "Forbidden");
    EXPECT_EQ(problem_of("00000").title, "OK");
}
