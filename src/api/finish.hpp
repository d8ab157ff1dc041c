// How a claim ends: what complete, fail, release, execute and once share.
//
// The row of an atomic claim is inserted here, so that the effect and the record commit together;
// the row of a leased claim is updated. The key lock is held and stays held: until the commit,
// other transactions see the lock, and afterwards the row. What the scope excludes from storage is
// left out of the record.
#pragma once

#include "pg/open_claims.hpp"
#include "pg/scope.hpp"
#include "pg/server.hpp"

namespace idem::api {

struct Answer {
    core::State state;  // completed or failed
    std::optional<std::int32_t> status = std::nullopt;
    Jsonb* headers = nullptr;
    Jsonb* response = nullptr;
    bytea* body = nullptr;
    Jsonb* error = nullptr;
    bool timed = true;  // the operation ran between the claim and this answer
};

// Stores the answer and ends the claim that the token names, whether atomic or leased. Raises ID005
// for a token that names no open claim of this transaction, and what lock_leased_claim() raises.
void finish(std::optional<std::string_view> token, const Answer& answer);
// Ends the claim without an answer, so that the key can be claimed again.
struct Release {
    std::optional<std::int64_t> retry_after = std::nullopt;  // microseconds; NULL: at once
    Jsonb* error = nullptr;                                  // NULL keeps the last error
};
void release(std::optional<std::string_view> token, const Release& how);

// Stores the answer of an atomic claim and ends the claim. Returns when the operation finished, as
// replays tell it.
TimestampTz finish_atomic(pg::Claim& claim, const Answer& answer);

// The part of a response that the scope's rules allow to be stored. NULL if the scope stores no
// responses or has been dropped (scope is NULL).
Jsonb* stored_response(Jsonb* response, const pg::Scope* scope);

// The record of an operation that completed without an answer.
pg::Record completed_record(TimestampTz created, std::int64_t ttl, std::int32_t attempt,
                            bytea* fingerprint);

}  // namespace idem::api
