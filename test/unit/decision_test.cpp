// The whole table of what a claim does about what it found.
#include "core/decision.hpp"

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

// Every combination that means something, spelled out.
constexpr Row table[] = {
    {P::absent, false, true, true, done, V::claim},
    {P::absent, true, false, false, bad, V::claim},

    // Another transaction's uncommitted row: its content is nobody's business yet.
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

    // This transaction's own row never expires within it, and is always visible to it.
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
        // Expiry is a moment: at it the record is over, a microsecond before it is not.
        for (std::int64_t expires : {row.expired ? now : now + 1, row.expired ? 0 : 2 * now}) {
            const Sighting seen{row.presence, row.in_snapshot, row.same_request, row.state,
                                expires};
            EXPECT_EQ(decide(seen, now), row.verdict)
                << "presence " << static_cast<int>(row.presence) << " expires " << expires
                << " in_snapshot " << row.in_snapshot << " same_request " << row.same_request
                << " state " << static_cast<char>(row.state);
        }
    }
}

// Rules that hold whatever else is true, over every combination.
TEST(Decision, Invariants) {
    for (auto presence : {P::absent, P::inserting, P::deleting, P::committed, P::own})
        for (bool in_snapshot : {false, true})
            for (bool same_request : {false, true})
                for (auto state : {done, bad})
                    for (std::int64_t expires : {now - 1, now, now + 1}) {
                        const Verdict v =
                            decide({presence, in_snapshot, same_request, state, expires}, now);
                        const bool answered = v == V::replay || v == V::failed;
                        EXPECT_FALSE(answered && !same_request);
                        EXPECT_FALSE(answered && !in_snapshot && presence != P::own);
                        EXPECT_FALSE(answered && expires <= now && presence != P::own);
                        EXPECT_FALSE(v == V::replay && state != done);
                        EXPECT_FALSE(v == V::failed && state != bad);
                        EXPECT_FALSE(v == V::claim && presence != P::absent && expires > now);
                        EXPECT_FALSE(v == V::claim && presence == P::own);
                    }
}
