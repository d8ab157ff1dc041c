// What SQLSTATEs mean: idem's own, and what a retry may cure.
#include "core/errors.hpp"

#include <set>

#include "support.hpp"

using namespace idem::core;

namespace {

bool is_transient(std::string_view sqlstate) {
    return lists(transient_errors, sqlstate);
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

TEST(OwnErrors, EachHasItsOwnCodeAndName) {
    std::set<std::string_view> codes;
    std::set<std::string_view> names;
    for (const Error& error : own_errors) {
        codes.insert(error.sqlstate);
        names.insert(error.name);
    }
    EXPECT_EQ(codes.size(), own_errors.size());
    EXPECT_EQ(names.size(), own_errors.size());
}

TEST(OwnErrors, AreFoundByName) {
    EXPECT_EQ(own_error("key_conflict").sqlstate, "ID002");
    EXPECT_EQ(own_error("sequence_gap").sqlstate, "ID012");
}

TEST(Transient, EachIsListedOnce) {
    const std::set<std::string_view> errors(transient_errors.begin(), transient_errors.end());
    EXPECT_EQ(errors.size(), transient_errors.size());
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
