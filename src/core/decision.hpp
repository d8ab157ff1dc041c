// What a claim does about what it found: the state machine's one table.
//
// The probe sees the newest committed truth and other transactions' unfinished work; these rules
// say what that means for the claim. Times are microseconds on one clock, read after the key lock
// was granted. Pure; nothing thrown.
#pragma once

#include <cstdint>
#include <optional>

namespace idem::core {

inline constexpr std::int32_t first_attempt = 1;

enum class State : char { in_progress = 'p', completed = 'c', failed = 'f' };

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
    std::int64_t lease_end;  // of a row in progress
    std::int32_t attempt;
    std::optional<std::int32_t> max_attempts;
};

enum class Verdict {
    claim,                  // nothing binds this key: the caller may own it
    take_over,              // its lease is over: the caller may own the next attempt
    in_flight,              // another transaction is at it: wait, then look again
    leased,                 // somebody holds it under a running lease: wait, then look again
    serialization_failure,  // the answer exists, but this transaction must not know it yet
    conflict,               // the key belongs to a different request
    replay,                 // completed: hand out the stored answer
    failed,                 // failed for good: hand out the stored failure
    exhausted,              // the last attempt's lease is over: failed for good, unwritten
};

// Attempts are exhausted by the end of the last one's lease; that is derived, never written.
constexpr bool exhausted(std::int32_t attempt, std::optional<std::int32_t> max_attempts,
                         std::int64_t lease_end, std::int64_t now) noexcept {
    return max_attempts && attempt >= *max_attempts && lease_end <= now;
}

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
    if (seen.state == State::completed) return Verdict::replay;
    if (seen.state == State::failed) return Verdict::failed;
    if (seen.lease_end > now) return Verdict::leased;
    if (exhausted(seen.attempt, seen.max_attempts, seen.lease_end, now)) return Verdict::exhausted;
    return Verdict::take_over;
}

// What a leased token is still good for: the fencing rules.
//
// A token names one attempt of one key by its number and its random bits. The row says which
// attempt is the current one; an older token is fenced off, whatever it asks. A late worker that
// nobody overtook keeps its rights: the end of the lease only allows others to take over.
// Times are microseconds on one clock, read after the key lock was granted. Pure; nothing thrown.
enum class TokenStanding {
    holds,     // the token's attempt is the current one, and unfinished
    finished,  // this very attempt was completed or failed
    lost,      // fenced: overtaken, released, expired, exhausted, or never there
};

struct TokenSighting {
    bool binds;         // there is a row that binds the key: unexpired, or this transaction's own
    bool same_attempt;  // its attempt and its random bits are the token's
    State state;
    std::int32_t attempt;
    std::int64_t lease_end;
    std::optional<std::int32_t> max_attempts;
};

constexpr TokenStanding judge_token(const TokenSighting& seen, std::int64_t now) noexcept {
    if (!seen.binds || !seen.same_attempt) return TokenStanding::lost;
    if (seen.state != State::in_progress) return TokenStanding::finished;
    if (exhausted(seen.attempt, seen.max_attempts, seen.lease_end, now)) return TokenStanding::lost;
    return TokenStanding::holds;
}

// What a message's sequence number says, given the watermark of its source.
//
// The watermark is the highest number seen. The first message of a source may have any number:
// where a stream begins is the source's business. Pure; nothing thrown.
enum class SequencePosition {
    ahead,   // new: the watermark moves here
    behind,  // seen before, or passed over
    gap,     // new, but something before it is missing
};

constexpr SequencePosition judge_sequence(std::optional<std::int64_t> watermark, std::int64_t seq,
                                          bool contiguous) noexcept {
    if (!watermark) return SequencePosition::ahead;
    if (seq <= *watermark) return SequencePosition::behind;
    if (contiguous && seq - 1 != *watermark) return SequencePosition::gap;
    return SequencePosition::ahead;
}

}  // namespace idem::core
