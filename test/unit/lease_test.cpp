// Fencing: what a leased token is still good for.
#include "core/lease.hpp"

#include "support.hpp"

using namespace idem::core;

namespace {

constexpr std::int64_t now = 1'000'000;
constexpr Tenure running{.binds = true,
                         .same_attempt = true,
                         .state = State::in_progress,
                         .attempt = 2,
                         .lease_end = now + 1,
                         .max_attempts = std::nullopt};

Tenure with(auto change) {
    Tenure tenure = running;
    change(tenure);
    return tenure;
}

}  // namespace

TEST(Lease, TheCurrentAttemptHolds) {
    EXPECT_EQ(standing(running, now), Standing::holds);
}

TEST(Lease, ALateWorkerThatNobodyOvertookStillHolds) {
    EXPECT_EQ(standing(with([](Tenure& t) { t.lease_end = now - 1000; }), now), Standing::holds);
}

TEST(Lease, AnOlderAttemptIsLost) {
    EXPECT_EQ(standing(with([](Tenure& t) { t.same_attempt = false; }), now), Standing::lost);
    EXPECT_EQ(standing(with([](Tenure& t) { t.binds = false; }), now), Standing::lost);
}

TEST(Lease, WhatThisAttemptFinishedIsFinished) {
    for (State state : {State::completed, State::failed}) {
        EXPECT_EQ(standing(with([=](Tenure& t) { t.state = state; }), now), Standing::finished);
        // Whoever finished it, it is not this token's business once it was overtaken.
        EXPECT_EQ(standing(with([=](Tenure& t) {
                               t.state = state;
                               t.same_attempt = false;
                           }),
                           now),
                  Standing::lost);
    }
}

TEST(Lease, TheLastAttemptIsLostWithItsLease) {
    const auto last = [](std::int64_t lease_end) {
        return with([=](Tenure& t) {
            t.max_attempts = 2;
            t.lease_end = lease_end;
        });
    };
    EXPECT_EQ(standing(last(now + 1), now), Standing::holds);
    EXPECT_EQ(standing(last(now), now), Standing::lost);
}
