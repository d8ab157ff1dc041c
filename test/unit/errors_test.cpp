// What SQLSTATEs mean: every one of idem's own, every one of PostgreSQL's that is told apart, the
// rest.
#include "core/errors.hpp"

#include <set>

#include "support.hpp"

using namespace idem::core;

namespace {

int status(std::string_view sqlstate) {
    return error_of(sqlstate).http_status;
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

TEST(OwnErrors, EachHasItsOwnCodeNameAndTitle) {
    std::set<std::string_view> codes;
    std::set<std::string_view> names;
    std::set<std::string_view> titles;
    for (const Error& error : own_errors) {
        codes.insert(error.sqlstate);
        names.insert(error.name);
        titles.insert(error.title);
    }
    EXPECT_EQ(codes.size(), own_errors.size());
    EXPECT_EQ(names.size(), own_errors.size());
    EXPECT_EQ(titles.size(), own_errors.size());
}

TEST(OwnErrors, AreFoundByCodeAndByName) {
    for (const Error& error : own_errors) EXPECT_EQ(error_of(error.sqlstate).name, error.name);
    EXPECT_EQ(own_error("key_conflict").sqlstate, "ID002");
    EXPECT_EQ(own_error("sequence_gap").sqlstate, "ID012");
}

TEST(OwnErrors, HttpStatus) {
    const std::pair<const char*, int> expected[] = {
        {"ID001", 409}, {"ID002", 422}, {"ID003", 409}, {"ID004", 409}, {"ID005", 409},
        {"ID006", 500}, {"ID007", 400}, {"ID008", 500}, {"ID009", 429}, {"ID010", 412},
        {"ID011", 428}, {"ID012", 409}, {"ID013", 500}};
    ASSERT_EQ(std::size(expected), own_errors.size());
    for (const auto& [sqlstate, code] : expected) EXPECT_EQ(status(sqlstate), code) << sqlstate;
}

TEST(OwnErrors, WhatAnotherTryMayCure) {
    for (const char* state : {"ID001", "ID004", "ID006", "ID008", "ID009", "ID012", "ID013"})
        EXPECT_TRUE(is_transient(state)) << state;
    for (const char* state : {"ID002", "ID003", "ID005", "ID007", "ID010", "ID011"})
        EXPECT_FALSE(is_transient(state)) << state;
}

TEST(ServerErrors, WhatTheServerMayDoAtTheNextTryIsUnavailable) {
    for (const char* sqlstate : {"08006", "40001", "40P01", "53100", "53300", "55P03", "57014",
                                 "57P01", "58030", "72000", "25006"}) {
        const Error error = error_of(sqlstate);
        EXPECT_EQ(error.http_status, 503) << sqlstate;
        EXPECT_EQ(error.name, "");
        EXPECT_EQ(error.title, "Service Unavailable");
    }
}

TEST(ServerErrors, TheOthersOverHttp) {
    EXPECT_EQ(status("00000"), 200);
    EXPECT_EQ(status("42501"), 403);
    EXPECT_EQ(status("22023"), 400);
    EXPECT_EQ(status("22P02"), 400);
    for (const char* sqlstate :
         {"01000", "02000", "00001", "23505", "25001", "42601", "42P01", "54000", "P0001", "XX000",
          "ID000", "ID014", "ID999", "IDEMP", "ZZZZZ"})
        EXPECT_EQ(status(sqlstate), 500) << sqlstate;
    EXPECT_EQ(error_of("ID014").name, "");
    EXPECT_EQ(error_of("XX000").title, "Internal Server Error");
    EXPECT_EQ(error_of("22023").title, "Bad Request");
    EXPECT_EQ(error_of("42501").title, "Forbidden");
    EXPECT_EQ(error_of("00000").title, "OK");
}

TEST(ServerErrors, EachIsListedOnce) {
    std::set<std::string_view> codes;
    for (const ServerError& error : server_errors) codes.insert(error.sqlstate);
    EXPECT_EQ(codes.size(), server_errors.size());
}

TEST(Transient, WhatTheMomentCaused) {
    for (const char* state :
         {"08006", "25P02", "25006", "40001", "40P01", "53100", "53200", "53300", "55P03", "55006",
          "57014", "57P01", "58030", "72000", "XX000", "XX001"})
        EXPECT_TRUE(is_transient(state)) << state;
}

TEST(Transient, WhatADeploymentInProgressLooksLike) {
    for (const char* state : {"3F000", "42703", "42704", "42725", "42804", "42809", "42883",
                              "42P01", "42P02", "42P10", "26000"})
        EXPECT_TRUE(is_transient(state)) << state;
}

TEST(Transient, AFullStack) {
    EXPECT_TRUE(is_transient("54001"));
    EXPECT_FALSE(is_transient("54000"));
}

TEST(Transient, WhatAForeignServerIsShortOf) {
    for (const char* state : {"HV00N", "HV001"}) EXPECT_TRUE(is_transient(state)) << state;
}

TEST(Transient, NotWhatTheOperationSays) {
    for (const char* state :
         {"00000", "P0001", "P0002", "22012", "23505", "23514", "24000", "34000",
          "38000", "42501", "42601", "42710", "42P06", "42P07", "42P18", "54000",
          "0A000", "21000", "2BP01", "3D000", "5X000", "X4000", "HV000"})
        EXPECT_FALSE(is_transient(state)) << state;
}

TEST(Transient, AListHasCodesAndClasses) {
    constexpr std::array<std::string_view, 2> list = {"P0001", "23"};
    EXPECT_TRUE(lists(list, "P0001"));
    EXPECT_TRUE(lists(list, "23505"));
    EXPECT_FALSE(lists(list, "P0002"));
    EXPECT_FALSE(lists({}, "P0001"));
}

TEST(FinalFailure, IsListed) {
    constexpr std::array<std::string_view, 4> list = {"P0001", "42", "40", "ID"};
    for (const char* state : {"P0001", "42501", "42601"})
        EXPECT_TRUE(is_final(list, state)) << state;
    for (const char* state : {"P0002", "23505", "42P01", "40001", "ID003", "", "42"})
        EXPECT_FALSE(is_final(list, state)) << state;
    EXPECT_FALSE(is_final({}, "P0001"));
}

TEST(FinalFailure, WhatAListMayHave) {
    for (const char* entry : {"P0001", "P0", "42", "42501", "54"})
        EXPECT_EQ(listing_fault(entry), FailureFault::none) << entry;
    for (const char* entry : {"", "p0", "P", "P00", "P000", "P00010"})
        EXPECT_EQ(listing_fault(entry), FailureFault::malformed) << entry;
    for (const char* entry : {"00", "01", "02", "03", "00000"})
        EXPECT_EQ(listing_fault(entry), FailureFault::no_failure) << entry;
    for (const char* entry : {"ID", "ID003"})
        EXPECT_EQ(listing_fault(entry), FailureFault::ours) << entry;
    for (const char* entry : {"40", "08", "XX", "40001", "42P01", "54001"})
        EXPECT_EQ(listing_fault(entry), FailureFault::transient) << entry;
}

TEST(FinalFailure, ItsSqlstate) {
    EXPECT_EQ(failure_fault("P0001"), FailureFault::none);
    for (const char* state : {"", "p0001", "P001"})
        EXPECT_EQ(failure_fault(state), FailureFault::malformed) << state;
    for (const char* state : {"00000", "01000", "02000", "03000"})
        EXPECT_EQ(failure_fault(state), FailureFault::no_failure) << state;
    for (const char* state : {"ID001", "ID003", "ID999"})
        EXPECT_EQ(failure_fault(state), FailureFault::ours) << state;
    for (const char* state : {"40001", "42P01"})
        EXPECT_EQ(failure_fault(state), FailureFault::transient) << state;
}
