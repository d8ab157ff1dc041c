// The decision tables: what happens to a claim, to a call with a leased token and to a message of a
// stream.
//
// The caller reads the newest committed rows and the unfinished work of other transactions. The
// rules here say what that means. All times are microseconds on one clock, read after the key lock
// was granted.
#pragma once

#include <cstdint>
#include <optional>

namespace idem::core {

// Attempts are numbered; each takeover adds one.
inline constexpr std::int32_t first_attempt = 1;

enum class State : char { in_progress = 'p', completed = 'c', failed = 'f' };

enum class Presence {
    absent,     // no row, or only aborted insertions and committed deletions
    inserting,  // a row that another transaction has written and not committed
    deleting,   // a committed row that another transaction is deleting or replacing
    committed,  // a committed row
    own,        // a row that the current transaction has written
};

struct FoundRow {
    Presence presence;
    bool in_snapshot;  // the transaction's snapshot can see it; always true in READ COMMITTED
    State state;
    std::int64_t expires;
    std::int64_t lease_end;  // of a row in progress
    std::int32_t attempt;
    std::optional<std::int32_t> max_attempts;
    std::int32_t extra_attempts = 0;
    bool replaced = false;  // another transaction is replacing the row, not deleting it
};

// Whether a row binds its key: one of the current transaction does not expire within that
// transaction.
constexpr bool binds(Presence presence, std::int64_t expires, std::int64_t now) noexcept {
    return presence == Presence::own || (presence != Presence::absent && expires > now);
}

enum class Verdict {
    claim,                  // no row binds the key: the caller may claim it
    take_over,              // the lease has ended: the caller may claim the next attempt
    in_flight,              // another transaction is changing the row: wait, then look again
    leased,                 // a lease is running: wait, then look again
    serialization_failure,  // the row is newer than the transaction's snapshot
    conflict,               // the key was claimed for a different request
    replay,                 // completed: return the stored response
    failed,                 // failed permanently: return the stored failure
    exhausted,              // as take_over, but no attempts are left: undecided, and not claimable
};

// An operation may have more attempts than its scope allows: an administrator grants them. When the
// lease of the last one has ended, nothing is written to the row, and nothing is decided: the
// operation may have had effects, that attempt may still complete, and another may be allowed.
constexpr bool is_last_attempt(std::int32_t attempt, std::optional<std::int32_t> max_attempts,
                               std::int32_t extra_attempts) noexcept {
    return max_attempts && attempt >= std::int64_t{*max_attempts} + extra_attempts;
}

// How many extra attempts an operation has when an administrator has let go of its present attempt:
// as many as before, or as many as one attempt more needs.
constexpr std::int32_t granted_attempts(std::int32_t attempt,
                                        std::optional<std::int32_t> max_attempts,
                                        std::int32_t extra_attempts) noexcept {
    const bool last = is_last_attempt(attempt, max_attempts, extra_attempts);
    return last ? attempt - *max_attempts + 1 : extra_attempts;
}

// When an operation completed or failed. lease_end is that of its finished record, which has one if
// the operation had a lease or was taken over. Any other operation was claimed and finished in one
// transaction.
constexpr std::int64_t answered_at(std::int64_t created,
                                   std::optional<std::int64_t> lease_end) noexcept {
    return lease_end.value_or(created);
}

// Whether a scope that keeps answers for that long has kept this one long enough. Readers then get
// none, and the purge worker removes it.
constexpr bool is_answer_expired(std::int64_t answered, std::optional<std::int64_t> answer_ttl,
                                 std::int64_t now) noexcept {
    return answer_ttl && answered <= now - *answer_ttl;
}

// Whether the fingerprints are equal, or both are absent.
enum class SameRequest : bool { no, yes };

// The order of the rules matters: expiry is checked before the content of the row, and a conflict
// before its state. An expired row that another transaction is deleting binds nothing, whether the
// deletion commits or not. A finished record is replaced only to erase its answer: its outcome
// stays, so that a replay need not wait.
constexpr Verdict decide(const FoundRow& row, SameRequest same, std::int64_t now) noexcept {
    if (row.presence == Presence::inserting) return Verdict::in_flight;
    if (!binds(row.presence, row.expires, now)) return Verdict::claim;
    const bool erasing = row.replaced && row.state != State::in_progress;
    if (row.presence == Presence::deleting && !erasing) return Verdict::in_flight;
    if (row.presence != Presence::own && !row.in_snapshot) return Verdict::serialization_failure;
    if (same == SameRequest::no) return Verdict::conflict;
    if (row.state == State::completed) return Verdict::replay;
    if (row.state == State::failed) return Verdict::failed;
    if (row.lease_end > now) return Verdict::leased;
    if (is_last_attempt(row.attempt, row.max_attempts, row.extra_attempts))
        return Verdict::exhausted;
    return Verdict::take_over;
}

// Leased tokens: the fencing rules
//
// A token names one attempt of one key, by the attempt's number and random bits. The row has those
// of the current attempt; every other token is fenced off. The end of a lease only allows another
// caller to take over: until one does, a late worker may still renew or complete. This also holds
// for the last attempt, which no caller may take over.

enum class TokenStanding {
    holds,     // the token's attempt is the current one, and unfinished
    finished,  // the token's attempt has completed or failed
    lost,      // overtaken, released or expired, or there is no such attempt
};

// same_attempt: the row's attempt number and random bits are the token's.
constexpr TokenStanding judge_token(const FoundRow& row, bool same_attempt,
                                    std::int64_t now) noexcept {
    if (!binds(row.presence, row.expires, now) || !same_attempt) return TokenStanding::lost;
    return row.state == State::in_progress ? TokenStanding::holds : TokenStanding::finished;
}

// Streams
//
// The watermark of a source is the highest sequence number that has been accepted from it. The
// first message of a source may have any number.

enum class SequencePosition {
    ahead,   // new: the watermark moves to it
    behind,  // seen before, or skipped
    gap,     // new, but a number before it is missing
};

constexpr SequencePosition judge_sequence(std::optional<std::int64_t> watermark, std::int64_t seq,
                                          bool contiguous) noexcept {
    if (!watermark) return SequencePosition::ahead;
    if (seq <= *watermark) return SequencePosition::behind;
    if (contiguous && seq - 1 != *watermark) return SequencePosition::gap;
    return SequencePosition::ahead;
}

}  // namespace idem::core
