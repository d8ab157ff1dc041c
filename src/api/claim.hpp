// How a key is claimed: the protocol that claim, try_claim, execute and once share, and the
// takeover that take shares with them.
//
// Locking: the key lock first, then the record table. The key lock is kept when the key is claimed
// and released in the same call otherwise. A wait for a lease or a transaction holds no key lock.
#pragma once

#include "api/admission.hpp"
#include "api/arguments.hpp"
#include "api/conflict.hpp"
#include "pg/open_claims.hpp"
#include "pg/store/record.hpp"
#include "pg/store/scope.hpp"

namespace idem::api {

struct ClaimCall : KeyCall {
    Jsonb* request = nullptr;
    std::int64_t ttl = 0;                 // microseconds
    std::int64_t wait = 0;                // microseconds: one bound for all waits of the call
    std::optional<std::int64_t> lease{};  // microseconds; not set for an atomic claim
    bool completes = false;               // once(): in the same call; and waits as the scope says
};

enum class Outcome {
    claimed,
    completed,
    failed,
    exhausted,    // undecided: the lease of the last attempt has ended
    in_progress,  // another transaction or a lease outlasted the wait
    open_here,    // this transaction has claimed the key and has not finished it
    conflict,     // the key belongs to a different request
    stale_key,    // a new key that is older than what the scope can remember
    limited,      // the tenant has made too many new claims
    no_room,      // nothing can count the claims of one tenant more
};

struct ClaimResult {
    Outcome outcome;
    pg::Claim* claim = nullptr;    // claimed
    pg::Record record{};           // completed, failed, exhausted; or the attempt taken over
    TimestampTz expires = 0;       // claimed under a lease: when the record expires
    pg::Holder holder{};           // in_progress
    std::int64_t retry_after = 0;  // microseconds; in_progress, exhausted, limited, no_room
    pg::report::WaitSetBy wait{};  // in_progress: what bounded the wait
    Conflict conflict{};           // conflict
};

// Claims the key. Raises 54000 if this transaction holds too many key locks, 40001 if the
// transaction's snapshot cannot see the answer, and for a new key the errors of the scope's rules:
// no tenant, no request, a ttl that is too short, a weak key. Everything else is an outcome.
ClaimResult claim_key(const ClaimCall& call);

// Takes over the operation whose row was found, as claim_key() does, for a caller that holds the
// key lock and has judged the row at that time. The outcome is claimed or, when another transaction
// has locked the row, in_progress.
ClaimResult take_over(const ClaimCall& call, const pg::Found& found, TimestampTz now);

// Counts a claim, or a takeover of the row that was found. Logs of a takeover that the old attempt
// has lapsed, unless it was released, and that the next one has begun.
void count_claim(const pg::Scope& scope, const pg::Key& key, const pg::Found& found,
                 core::Verdict verdict);

// Counts a replay that came long after the operation has finished, besides Counter::replays.
void count_if_late(std::int32_t scope_id, const pg::Record& replayed);

// Raises the error of idem.claim() for an outcome other than claimed and completed.
[[noreturn]] void refuse_claim(const ClaimCall& call, const ClaimResult& result);

}  // namespace idem::api
