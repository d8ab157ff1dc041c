// How a key is claimed: the protocol that claim, try_claim, execute and once share.
//
// The key lock is taken without waiting, the index is probed once, and the core's table says what
// that means; while somebody else is at the key we wait within the bound and look again. What is
// finished is answered with or without the lock: replays never queue. An atomic claim writes
// nothing here; a leased one writes its row. Locking: the key lock, kept when claimed, freed in the
// same call otherwise; the record table after it. A wait for a lease or a transaction holds no key
// lock.
#pragma once

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
    std::int64_t wait;                  // microseconds, the bound of all waits together
    std::optional<std::int64_t> lease;  // microseconds; none: an atomic claim
    bool writes_at_once = false;        // as a leased claim does, or once()
    pg::report::WaitSetBy wait_set_by = pg::report::WaitSetBy::argument;
};

// An atomic claim of the key under the scope's rules (a tenant or a request may be missing); ttl
// and wait default to the scope's.
ClaimCall claim_call(const pg::Scope& scope, std::string_view key, std::string_view tenant,
                     Jsonb* request, std::optional<std::int64_t> ttl,
                     std::optional<std::int64_t> wait);

enum class Outcome {
    claimed,
    completed,
    failed,
    exhausted,    // failed: the last attempt's lease is over
    in_progress,  // another transaction or a lease outlasted the wait
    open_here,    // this transaction has claimed it and not finished
    conflict,
    stale_key,  // a new key that is older than what the scope can remember
    too_many,   // this transaction holds too many key locks
    limited,    // the tenant has made too many new claims
};

struct Claiming {
    Outcome outcome;
    pg::Claim* claim = nullptr;    // when claimed
    pg::Record record{};           // completed, failed, exhausted; or what was taken over
    pg::report::Holder holder{};   // in_progress
    std::int64_t retry_after = 0;  // microseconds; in_progress, limited
};

// Raises 40001 where the transaction's snapshot cannot see the answer; all else is an outcome.
Claiming claim_key(const ClaimCall& call);

// Raises what idem.claim() promises for an outcome that is neither claimed nor completed.
[[noreturn]] void refuse(const ClaimCall& call, const Claiming& result);

}  // namespace idem::api
