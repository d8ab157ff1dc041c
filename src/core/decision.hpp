// What a claim does about what it found: the state machine's one table.
//
// The probe sees the newest committed truth and other transactions' unfinished work; these rules
// say what that means for the claim. Times are microseconds on one clock, read after the key lock
// was granted. Pure; nothing thrown.
#pragma once

#include <cstdint>

namespace idem::core {

enum class State : char { completed = 'c', failed = 'f' };

// What the index probe met under this key.
enum class Presence {
    absent,     // no row, or only rows of aborted or committed deletions
    inserting,  // a row that another transaction wrote and has not committed
    deleting,   // a committed row that another transaction is deleting or replacing
    committed,  // a committed row
    own,        // a row that this very transaction wrote
};

struct Sighting {
    Presence presence;
    bool in_snapshot;   // the transaction's snapshot can see it; true in READ COMMITTED
    bool same_request;  // fingerprints agree (both absent counts as agreement)
    State state;
    std::int64_t expires;
};

enum class Verdict {
    claim,                  // nothing binds this key: the caller may own it
    in_flight,              // another transaction is at it: wait, then look again
    serialization_failure,  // the answer exists, but this transaction must not know it yet
    conflict,               // the key belongs to a different request
    replay,                 // completed: hand out the stored answer
    failed,                 // failed for good: hand out the stored failure
};

// Expiry comes before everything that speaks of the row's content, and conflict before state. A row
// of this transaction never expires within it. An expired row that somebody is just deleting binds
// nothing, whatever becomes of the deletion.
constexpr Verdict decide(const Sighting& seen, std::int64_t now) noexcept {
    const bool own = seen.presence == Presence::own;
    if (seen.presence == Presence::absent) return Verdict::claim;
    if (seen.presence == Presence::inserting) return Verdict::in_flight;
    if (!own && seen.expires <= now) return Verdict::claim;
    if (seen.presence == Presence::deleting) return Verdict::in_flight;
    if (!own && !seen.in_snapshot) return Verdict::serialization_failure;
    if (!seen.same_request) return Verdict::conflict;
    return seen.state == State::failed ? Verdict::failed : Verdict::replay;
}

}  // namespace idem::core
