// How a claim ends: what complete, fail, release, execute and once share.
//
// An atomic claim's row is inserted here, so that effect and record commit together; a leased one's
// is updated. The key lock is held, and kept: others see either the lock or the committed row. What
// the scope wants kept out of storage is left out of the record.
//
// idem.max_answer_size: how large what one call stores may be.
//
// Judged by the size of the values as they are passed, before compression and TOAST, so that the
// same answer is always accepted or always refused. Callers of claims pay for storage that is not
// theirs; and what is too large to be read again must not get in.
#pragma once

#include <initializer_list>

#include "pg/open_claims.hpp"
#include "pg/scope.hpp"
#include "pg/server.hpp"

namespace idem::api {

struct Ending {
    core::State state;  // completed or failed
    std::optional<std::int32_t> status = std::nullopt;
    Jsonb* headers = nullptr;
    Jsonb* response = nullptr;
    bytea* body = nullptr;
    Jsonb* error = nullptr;
};

// What may be stored of a response by the scope's rules; nothing, if the scope is gone (NULL).
Jsonb* stored_response(Jsonb* response, const pg::Scope* scope);

// The record of an operation that is completed without an answer, to be written as it is.
pg::Record completed_record(TimestampTz created, std::int64_t ttl, std::int32_t attempt,
                            bytea* fingerprint);

// Writes the record of an atomic claim.
void finish_atomic(pg::Claim& claim, const Ending& ending);

// Of either kind. Raises ID004, ID005 and what hold() raises.
void finish(std::optional<std::string_view> token, const Ending& ending);
void release(std::optional<std::string_view> token);

// The SQL function fail(), with the rules for the error of the release that it belongs to.
void fail(FunctionCallInfo fcinfo, void (*check)(Jsonb* error));


// NULL counts nothing. Raises 54000.
void check_stored_size(const char* what, std::initializer_list<const void*> values);

}  // namespace idem::api
