// Which SQLSTATEs are worth a retry.
#include "core/classify.hpp"

#include "support.hpp"

using idem::core::is_transient;

TEST(Classify, WhatTheMomentCausedIsTransient) {
    for (const char* state :
         {"08006", "25P02", "25006", "40001", "40P01", "53100", "53200", "53300", "55P03", "55006",
          "57014", "57P01", "58030", "72000", "XX000", "XX001"})
        EXPECT_TRUE(is_transient(state)) << state;
}

TEST(Classify, WhatADeploymentInProgressLooksLikeIsTransient) {
    for (const char* state : {"3F000", "42703", "42704", "42725", "42804", "42809", "42883",
                              "42P01", "42P02", "42P10", "26000"})
        EXPECT_TRUE(is_transient(state)) << state;
}

TEST(Classify, WhatAForeignServerIsShortOfIsTransient) {
    for (const char* state : {"HV00N", "HV001"}) EXPECT_TRUE(is_transient(state)) << state;
}

TEST(Classify, OfOursWhatAnotherTryMayCure) {
    for (const char* state : {"ID001", "ID004", "ID006", "ID008", "ID009", "ID012"})
        EXPECT_TRUE(is_transient(state)) << state;
    for (const char* state : {"ID002", "ID003", "ID005", "ID007", "ID010", "ID011"})
        EXPECT_FALSE(is_transient(state)) << state;
}

TEST(Classify, WhatTheOperationSaysIsFinal) {
    for (const char* state :
         {"P0001", "P0002", "22012", "23505", "23514", "24000", "34000", "38000",
          "42501", "42601", "42710", "42P06", "42P07", "42P18", "54000", "54001",
          "0A000", "21000", "2BP01", "3D000", "5X000", "X4000", "HV000"})
        EXPECT_FALSE(is_transient(state)) << state;
}
