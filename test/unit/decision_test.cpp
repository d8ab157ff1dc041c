// The decision tables, row for row, and the invariants of the rules behind them.
#include "core/decision.hpp"

#include <limits>

#include "support.hpp"

using namespace idem::core;

namespace {

constexpr std::int64_t now = 1'000'000;

struct Row {
    Presence presence;
    bool expired;
    bool in_snapshot;
    bool same_request;
    State state;
    Verdict verdict;
};

using P = Presence;
using V = Verdict;
constexpr State done = State::completed, bad = State::failed;

// Every combination that makes a difference.
constexpr Row table[] = {
    {P::absent, false, true, true, done, V::claim},
    {P::absent, true, false, false, bad, V::claim},

    // Another transaction's uncommitted row: its content must not matter.
    {P::inserting, false, true, true, done, V::in_flight},
    {P::inserting, true, true, true, done, V::in_flight},
    {P::inserting, false, false, false, bad, V::in_flight},

    {P::committed, false, true, true, done, V::replay},
    {P::committed, false, true, true, bad, V::failed},
    {P::committed, false, true, false, done, V::conflict},
    {P::committed, false, true, false, bad, V::conflict},
    {P::committed, false, false, true, done, V::serialization_failure},
    {P::committed, false, false, true, bad, V::serialization_failure},
    {P::committed, false, false, false, done, V::serialization_failure},
    {P::committed, true, true, true, done, V::claim},
    {P::committed, true, true, true, bad, V::claim},
    {P::committed, true, true, false, done, V::claim},
    {P::committed, true, false, true, done, V::claim},

    {P::deleting, false, true, true, done, V::in_flight},
    {P::deleting, false, true, false, bad, V::in_flight},
    {P::deleting, false, false, true, done, V::in_flight},
    {P::deleting, true, true, true, done, V::claim},
    {P::deleting, true, false, false, bad, V::claim},

    // A transaction's own row does not expire within it, and is always visible to it.
    {P::own, false, true, true, done, V::replay},
    {P::own, false, true, true, bad, V::failed},
    {P::own, false, true, false, done, V::conflict},
    {P::own, true, true, true, done, V::replay},
    {P::own, true, true, true, bad, V::failed},
    {P::own, true, true, false, done, V::conflict},
    {P::own, false, false, true, done, V::replay},
};

}  // namespace

TEST(Decision, FollowsTheTable) {
    for (const Row& row : table) {
        // A record has expired when the clock reads `expires`, and not a microsecond earlier.
        for (std::int64_t expires : {row.expired ? now : now + 1, row.expired ? 0 : 2 * now}) {
            const FoundRow seen{.presence = row.presence,
                                .in_snapshot = row.in_snapshot,
                                .state = row.state,
                                .expires = expires,
                                .lease_end = 0,
                                .attempt = 1,
                                .max_attempts = std::nullopt};
            EXPECT_EQ(decide(seen, SameRequest{row.same_request}, now), row.verdict)
                << "presence " << static_cast<int>(row.presence) << " expires " << expires
                << " in_snapshot " << row.in_snapshot << " same_request " << row.same_request
                << " state " << static_cast<char>(row.state);
        }
    }
}

// Checked for every combination.
TEST(Decision, KeepsItsInvariants) {
    for (auto presence : {P::absent, P::inserting, P::deleting, P::committed, P::own})
        for (bool in_snapshot : {false, true})
            for (bool same_request : {false, true})
                for (auto state : {done, bad, State::in_progress})
                    for (std::int64_t expires : {now - 1, now, now + 1}) {
                        const Verdict v = decide({.presence = presence,
                                                  .in_snapshot = in_snapshot,
                                                  .state = state,
                                                  .expires = expires,
                                                  .lease_end = now,
                                                  .attempt = 1,
                                                  .max_attempts = std::nullopt},
                                                 SameRequest{same_request}, now);
                        const bool answered = v == V::replay || v == V::failed;
                        EXPECT_FALSE(answered && !same_request);
                        EXPECT_FALSE(answered && !in_snapshot && presence != P::own);
                        EXPECT_FALSE(answered && expires <= now && presence != P::own);
                        EXPECT_FALSE(v == V::replay && state != done);
                        EXPECT_FALSE(v == V::failed && state != bad);
                        EXPECT_FALSE(v == V::claim && presence != P::absent && expires > now);
                        EXPECT_FALSE(v == V::claim && presence == P::own);
                        EXPECT_FALSE(v == V::take_over && state != State::in_progress);
                    }
}

namespace {

struct Leased {
    Presence presence;
    bool same_request;
    std::int64_t lease_end;
    std::int32_t attempt;
    std::optional<std::int32_t> max_attempts;
    Verdict verdict;
};

constexpr auto none = std::nullopt;

// A row in progress that expires long after its lease. The lease has ended when the clock reads
// `lease_end`.
constexpr Leased leased_table[] = {
    {P::committed, true, now + 1, 1, none, V::leased},
    {P::committed, true, now, 1, none, V::take_over},
    {P::committed, true, now - 1, 1, none, V::take_over},
    {P::committed, true, now + 1, 3, 3, V::leased},
    {P::committed, true, now, 2, 3, V::take_over},
    {P::committed, true, now, 3, 3, V::exhausted},
    {P::committed, true, now, 4, 3, V::exhausted},  // the limit was lowered
    {P::committed, false, now + 1, 1, none, V::conflict},
    {P::committed, false, now, 1, none, V::conflict},
    {P::committed, false, now, 3, 3, V::conflict},
    {P::deleting, true, now, 1, none, V::in_flight},
    {P::inserting, true, now, 1, none, V::in_flight},
    {P::own, true, now + 1, 1, none, V::leased},
    {P::own, true, now, 1, none, V::take_over},  // claimed and released in this transaction
    {P::own, true, now, 3, 3, V::exhausted},
};

}  // namespace

TEST(Decision, FollowsTheTableOfLeases) {
    for (const Leased& row : leased_table) {
        const FoundRow seen{.presence = row.presence,
                            .in_snapshot = true,
                            .state = State::in_progress,
                            .expires = now + 1000,
                            .lease_end = row.lease_end,
                            .attempt = row.attempt,
                            .max_attempts = row.max_attempts};
        EXPECT_EQ(decide(seen, SameRequest{row.same_request}, now), row.verdict)
            << "presence " << static_cast<int>(row.presence) << " lease_end " << row.lease_end - now
            << " attempt " << row.attempt;
    }
}

TEST(Decision, ExtraAttemptsAreAllowedBeyondTheScopesLimit) {
    const auto verdict = [](std::int32_t attempt, std::optional<std::int32_t> max,
                            std::int32_t extra) {
        return decide({.presence = P::committed,
                       .in_snapshot = true,
                       .state = State::in_progress,
                       .expires = now + 1000,
                       .lease_end = now,
                       .attempt = attempt,
                       .max_attempts = max,
                       .extra_attempts = extra},
                      SameRequest::yes, now);
    };
    EXPECT_EQ(verdict(3, 3, 0), V::exhausted);
    EXPECT_EQ(verdict(3, 3, 1), V::take_over);
    EXPECT_EQ(verdict(4, 3, 1), V::exhausted);
    EXPECT_EQ(verdict(4, 3, 2), V::take_over);
    EXPECT_EQ(verdict(4, none, 0), V::take_over);
    constexpr auto most = std::numeric_limits<std::int32_t>::max();
    EXPECT_EQ(verdict(most, most, 0), V::exhausted);
    EXPECT_EQ(verdict(most, most, most), V::take_over);
}

// One attempt more than there were, if they are used up; asking twice grants no second one.
// A replay does not wait for a transaction that erases the answer; a takeover would.
TEST(Claims, AFinishedRecordThatIsReplacedIsAnswered) {
    const auto verdict = [](Presence presence, State state, bool same_request, bool in_snapshot,
                            bool expired) {
        return decide({.presence = presence,
                       .in_snapshot = in_snapshot,
                       .state = state,
                       .expires = expired ? now : now + 1000,
                       .lease_end = now,
                       .attempt = 1,
                       .max_attempts = std::nullopt,
                       .replaced = true},
                      SameRequest{same_request}, now);
    };
    EXPECT_EQ(verdict(P::deleting, done, true, true, false), V::replay);
    EXPECT_EQ(verdict(P::deleting, bad, true, true, false), V::failed);
    EXPECT_EQ(verdict(P::deleting, done, false, true, false), V::conflict);
    EXPECT_EQ(verdict(P::deleting, done, true, false, false), V::serialization_failure);
    EXPECT_EQ(verdict(P::deleting, done, true, true, true), V::claim);
    EXPECT_EQ(verdict(P::deleting, State::in_progress, true, true, false), V::in_flight);
    EXPECT_EQ(verdict(P::inserting, done, true, true, false), V::in_flight);
}

TEST(Attempts, OneMoreIsGrantedWhenTheyAreUsedUp) {
    constexpr std::int32_t most = std::numeric_limits<std::int32_t>::max();
    EXPECT_EQ(granted_attempts(3, std::nullopt, 0), 0);
    EXPECT_EQ(granted_attempts(2, 3, 0), 0);
    EXPECT_EQ(granted_attempts(3, 3, 0), 1);
    EXPECT_EQ(granted_attempts(3, 3, 1), 1);
    EXPECT_EQ(granted_attempts(4, 3, 1), 2);
    EXPECT_EQ(granted_attempts(5, 3, 0), 3);  // the limit was lowered
    EXPECT_EQ(granted_attempts(most, most, 0), 1);
    EXPECT_EQ(granted_attempts(most - 1, 1, most), most);
}

TEST(Answer, IsGivenWhenTheOperationFinishes) {
    EXPECT_EQ(answered_at(now, std::nullopt), now);  // claimed and finished in one transaction
    EXPECT_EQ(answered_at(now, now + 5), now + 5);
}

TEST(Answer, IsExpiredAfterTheTimeThatTheScopeKeepsIt) {
    EXPECT_FALSE(is_answer_expired(now - 1'000'000'000, std::nullopt, now));
    EXPECT_FALSE(is_answer_expired(now - 9, 10, now));
    EXPECT_TRUE(is_answer_expired(now - 10, 10, now));
    EXPECT_FALSE(is_answer_expired(now + 5, 10, now));  // the clock was set back
}

TEST(Decision, AnExpiredRowInProgressBindsNothing) {
    EXPECT_EQ(decide({.presence = P::committed,
                      .in_snapshot = true,
                      .state = State::in_progress,
                      .expires = now,
                      .lease_end = now - 10,
                      .attempt = 3,
                      .max_attempts = 3},
                     SameRequest::no, now),
              V::claim);
}

// The fencing rules

namespace {

constexpr FoundRow running{.presence = P::committed,
                           .in_snapshot = true,
                           .state = State::in_progress,
                           .expires = now + 1000,
                           .lease_end = now + 1,
                           .attempt = 2,
                           .max_attempts = std::nullopt};

TokenStanding standing(auto change, bool same_attempt = true) {
    FoundRow row = running;
    change(row);
    return judge_token(row, same_attempt, now);
}

}  // namespace

TEST(TokenStanding, OfTheCurrentAttemptHolds) {
    EXPECT_EQ(judge_token(running, true, now), TokenStanding::holds);
}

TEST(TokenStanding, HoldsAfterTheLeaseUntilATakeover) {
    EXPECT_EQ(standing([](FoundRow& row) { row.lease_end = now - 1000; }), TokenStanding::holds);
}

TEST(TokenStanding, OfAnOlderAttemptIsLost) {
    EXPECT_EQ(judge_token(running, false, now), TokenStanding::lost);
}

TEST(TokenStanding, IsLostWithItsRow) {
    EXPECT_EQ(standing([](FoundRow& row) { row.presence = P::absent; }), TokenStanding::lost);
    EXPECT_EQ(standing([](FoundRow& row) { row.expires = now; }), TokenStanding::lost);
    // A row of the current transaction does not expire within it.
    EXPECT_EQ(standing([](FoundRow& row) {
                  row.presence = P::own;
                  row.expires = now;
              }),
              TokenStanding::holds);
}

TEST(TokenStanding, OfAFinishedAttemptIsFinished) {
    for (State state : {State::completed, State::failed}) {
        const auto finish = [=](FoundRow& row) { row.state = state; };
        EXPECT_EQ(standing(finish), TokenStanding::finished);
        // A token that has been overtaken is lost, whichever attempt has finished the operation.
        EXPECT_EQ(standing(finish, false), TokenStanding::lost);
    }
}

TEST(TokenStanding, OfTheLastAttemptHoldsAfterItsLease) {
    const auto last = [](FoundRow& row) {
        row.max_attempts = 2;
        row.lease_end = now;
    };
    EXPECT_EQ(standing(last), TokenStanding::holds);
    EXPECT_EQ(standing(last, false), TokenStanding::lost);
}

// The rule of the watermark, with the limits of its type

namespace {

constexpr std::int64_t lowest = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t highest = std::numeric_limits<std::int64_t>::max();

}  // namespace

TEST(Sequence, TheFirstMessageMayHaveAnyNumber) {
    for (std::int64_t seq : {lowest, std::int64_t{-1}, std::int64_t{0}, std::int64_t{7}, highest})
        for (bool contiguous : {false, true})
            EXPECT_EQ(judge_sequence(std::nullopt, seq, contiguous), SequencePosition::ahead);
}

TEST(Sequence, NumbersUpToTheWatermarkAreBehind) {
    for (bool contiguous : {false, true}) {
        EXPECT_EQ(judge_sequence(7, 7, contiguous), SequencePosition::behind);
        EXPECT_EQ(judge_sequence(7, 6, contiguous), SequencePosition::behind);
        EXPECT_EQ(judge_sequence(7, lowest, contiguous), SequencePosition::behind);
        EXPECT_EQ(judge_sequence(highest, highest, contiguous), SequencePosition::behind);
        EXPECT_EQ(judge_sequence(lowest, lowest, contiguous), SequencePosition::behind);
    }
}

TEST(Sequence, TheNextNumberIsAhead) {
    for (bool contiguous : {false, true}) {
        EXPECT_EQ(judge_sequence(7, 8, contiguous), SequencePosition::ahead);
        EXPECT_EQ(judge_sequence(-1, 0, contiguous), SequencePosition::ahead);
        EXPECT_EQ(judge_sequence(lowest, lowest + 1, contiguous), SequencePosition::ahead);
        EXPECT_EQ(judge_sequence(highest - 1, highest, contiguous), SequencePosition::ahead);
    }
}

TEST(Sequence, GapsMatterOnlyInContiguousStreams) {
    EXPECT_EQ(judge_sequence(7, 9, false), SequencePosition::ahead);
    EXPECT_EQ(judge_sequence(7, 9, true), SequencePosition::gap);
    EXPECT_EQ(judge_sequence(lowest, highest, false), SequencePosition::ahead);
    EXPECT_EQ(judge_sequence(lowest, highest, true), SequencePosition::gap);
}
