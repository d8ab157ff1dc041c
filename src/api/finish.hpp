// How a claim ends: what complete, fail, release, execute and once share.
//
// The row of an atomic claim is inserted here, so that the effect and the record commit together;
// the row of a leased claim is updated. The key lock is held and stays held: until the commit,
// other transactions see the lock, and afterwards the row. What the scope excludes from storage is
// left out of the record.
#pragma once

#include "pg/open_claims.hpp"
#include "pg/store/scope.hpp"

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

// Stores the answer of an atomic claim and ends the claim. Returns what is stored. Raises ID001 if
// the row is not free within the scope's wait.
pg::NewRecord finish_atomic(pg::Claim& claim, const Answer& answer);

pg::NewRecord completed_record(const pg::Key& key, TimestampTz created, std::int64_t ttl,
                               std::int32_t attempt, bytea* fingerprint);

}  // namespace idem::api
