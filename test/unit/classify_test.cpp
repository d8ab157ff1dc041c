// Which SQLSTATEs are worth a retry.
#include "core/classify.hpp"

#include "support.hpp"

using idem::core::is_transient;

TEST(Classify, WhatTheMomentCausedIsTransient) {
    for (const char* state :
         {"08006", "25P02", "25006", "40001", "40P01", "53100", "53200", "53300", "55P03", "55006",
          "57014", "57P01", "58030", "XX000", "XX001"})
        EXPECT_TRUE(is_transient(state)) << state;
}

TEST(Classify, OfOursWhatAnotherTryMayCure) {
    for (const char* state : {"ID001", "ID004", "ID006", "ID009"})
        EXPECT_TRUE(is_transient(state)) << state;
    for (const char* state :
         {"ID002", "ID003", "ID005", "ID007", "ID008", "ID010", "ID011", "ID012"})
        EXPECT_FALSE(is_transient(state)) << state;
}

TEST(Classify, WhatTheOperationSaysIsFinal) {
    for (const char* state : {"P0001", "P0002", "22012", "23505", "23514", "42501", "42P01",
                              "54000", "0A000", "21000", "2BP01", "5X000", "X4000"})
        EXPECT_FALSE(is_transient(state)) << state;
}
