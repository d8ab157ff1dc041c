// How a key is claimed: the protocol that claim, try_claim, execute and once share, and the
// takeover that take shares with them.
//
// A claim tries the key lock without waiting, probes the index once, and lets the core's decision
// table say what that means. While another transaction or a lease holds the key, the claim waits
// within its bound and looks again. A finished record is answered with or without the lock, so
// replays never queue. An atomic claim writes nothing here; a leased claim writes its row.
//
// Locking: the key lock first, then the record table. The key lock is kept when the key is claimed
// and released in the same call otherwise. A wait for a lease or a transaction holds no key lock.
#pragma once

#include "api/admission.hpp"
#include "api/arguments.hpp"
#include "api/conflict.hpp"
#include "pg/open_claims.hpp"
#include "pg/record.hpp"
#include "pg/report.hpp"
#include "pg/scope.hpp"

namespace idem::api {

struct ClaimCall {
    const pg::Scope* scope;
    pg::KeyName name;
    Jsonb* request;
    std::int64_t ttl;                   // microseconds
    std::int64_t wait;                  // microseconds: one bound for all waits of the call
    std::optional<std::int64_t> lease;  // microseconds; not set for an atomic claim
    bool writes_at_once = false;        // true for a leased claim and for once()
    pg::report::WaitSetBy wait_set_by = pg::report::WaitSetBy::argument;
};

// The call for an atomic claim of the key. ttl and wait default to the scope's.
ClaimCall make_claim_call(const KeyCall& key, Jsonb* request, std::optional<std::int64_t> ttl,
                          std::optional<std::int64_t> wait);

enum class Outcome {
    claimed,
    completed,
    failed,
    exhausted,    // failed: the lease of the last attempt has ended
    in_progress,  // another transaction or a lease outlasted the wait
    open_here,    // this transaction has claimed the key and has not finished it
    conflict,     // the key belongs to a different request
    stale_key,    // a new key that is older than what the scope can remember
    limited,      // the tenant has made too many new claims
};

struct ClaimResult {
    Outcome outcome;
    pg::Claim* claim = nullptr;    // claimed
    pg::Record record{};           // completed, failed, exhausted; or the attempt taken over
    TimestampTz expires = 0;       // claimed under a lease: when the record expires
    pg::report::Holder holder{};   // in_progress
    std::int64_t retry_after = 0;  // microseconds; in_progress, limited
    Conflict conflict{};           // conflict
};

// Claims the key. Raises 54000 if this transaction holds too many key locks, 40001 if the
// transaction's snapshot cannot see the answer, and for a new key the errors of the scope's rules:
// no tenant, no request, a ttl that is too short, a weak key. Everything else is an outcome.
ClaimResult claim_key(const ClaimCall& call);

// Takes over the operation whose row was found, as claim_key() does, for a caller that holds the
// key lock, has judged the row at that time, and lets another attempt begin. The outcome is
// claimed or, when another transaction has locked the row, in_progress.
ClaimResult take_over(const ClaimCall& call, const pg::Found& found, TimestampTz now,
                      const pg::WaitBound& bound);

// Logs that the attempt of the old record has lapsed, unless it was released, and that the next one
// has begun.
void log_takeover(const pg::Scope& scope, const pg::KeyName& name, const pg::Record& old);

// Raises the error of idem.claim() for an outcome other than claimed and completed.
[[noreturn]] void refuse(const ClaimCall& call, const ClaimResult& result);

// What the core decides about the row that a probe found.
core::Verdict judge(const pg::Found& found, bool same_request, const pg::Scope& scope,
                    TimestampTz now);

}  // namespace idem::api
