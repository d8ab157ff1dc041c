#include "api/finishing.hpp"

#include "api/holding.hpp"
#include "api/settled.hpp"
#include "api/stored_size.hpp"
#include "pg/boundary.hpp"
#include "pg/document.hpp"
#include "pg/stats.hpp"

namespace idem::api {
namespace {

using core::TokenKind;
using pg::Counter;

struct Stored {
    Ending ending;
    bool redacted;
};

bool stores_responses(const pg::Scope* scope) {
    return scope != nullptr && scope->store_response;
}

// What may be stored of an answer, by the scope's rules as they are now. A failure is kept whole:
// it is raised again.
Stored kept_part(const Ending& ending, const pg::Scope* scope) {
    if (ending.state != core::State::completed) return {ending, false};
    Ending kept = ending;
    kept.response = stored_response(ending.response, scope);
    if (!stores_responses(scope)) {
        kept.headers = nullptr;
        kept.body = nullptr;
    }
    return {kept, kept.headers != ending.headers || kept.response != ending.response ||
                      kept.body != ending.body};
}

Stored stored_part(const Ending& ending, const pg::Scope* scope) {
    const Stored stored = kept_part(ending, scope);
    const Ending& kept = stored.ending;
    check_stored_size("answer", {kept.headers, kept.response, kept.body, kept.error});
    return stored;
}

// Recovery point and lease have served their purpose; the token's bits stay, so that a second
// complete() is told that the claim is finished.
pg::Record finished(const Stored& stored, TimestampTz created, std::int64_t ttl,
                    std::int32_t attempt, bytea* fingerprint, std::optional<std::int64_t> nonce) {
    const Ending& ending = stored.ending;
    return {
        .created = created,
        .expires = GetCurrentTimestamp() + ttl,
        .lease_end = std::nullopt,
        .nonce = nonce,
        .attempt = attempt,
        .state = ending.state,
        .redacted = stored.redacted,
        .fingerprint = fingerprint,
        .recovery_point = nullptr,
        .recovery_state = nullptr,
        .status = ending.status,
        .headers = ending.headers,
        .response = ending.response,
        .body = ending.body,
        .error = ending.error,
    };
}

void note_finished(pg::Claim& claim, core::State state) {
    pg::close_claim(claim, pg::Phase::finished);
    const bool failed = state == core::State::failed;
    pg::count(claim.scope_id, failed ? Counter::failures : Counter::completions);
}

void note_released(pg::Claim& claim) {
    pg::close_claim(claim, pg::Phase::released);
    pg::count(claim.scope_id, Counter::releases);
}

void finish_leased(const Holding& holding, const Ending& ending) {
    const pg::Record& old = holding.record;
    update(holding, finished(stored_part(ending, holding.scope), old.created, ttl_of(old),
                             old.attempt, old.fingerprint, old.nonce));
    note_finished(*holding.claim, ending.state);
}

// The row and its attempt stay, so that the token is fenced off; the next claim gets the key at
// once, when this transaction has committed.
void release_leased(const Holding& holding) {
    pg::Record record = holding.record;
    record.lease_end = GetCurrentTimestamp();
    record.expires = expires_after(holding.record, *record.lease_end);
    record.nonce = std::nullopt;
    update(holding, record);
    note_released(*holding.claim);
}

}  // namespace

Jsonb* stored_response(Jsonb* response, const pg::Scope* scope) {
    return stores_responses(scope) ? pg::redact(response, scope->response_exclude) : nullptr;
}

pg::Record completed_record(TimestampTz created, std::int64_t ttl, std::int32_t attempt,
                            bytea* fingerprint) {
    return finished({{.state = core::State::completed}, false}, created, ttl, attempt, fingerprint,
                    std::nullopt);
}

void finish_atomic(pg::Claim& claim, const Ending& ending) {
    const pg::KeyName name{claim.scope_id, claim.tenant, claim.key, claim.token.digest};
    const pg::Scope* scope = pg::find_scope_by_id(claim.scope_id);
    const pg::WaitBound bound(scope == nullptr ? 0 : scope->wait);
    const Stored stored = stored_part(ending, scope);
    const pg::Records records = pg::Records::to_write();
    const pg::WriteResult writing = pg::write_record(
        records, name,
        finished(stored, claim.created, claim.ttl, static_cast<std::int32_t>(claim.token.attempt),
                 claim.fingerprint, std::nullopt),
        claim.predecessor, bound);
    records.close();
    check_written(name.key, writing);
    note_finished(claim, ending.state);
}

void finish(std::optional<std::string_view> text, const Ending& ending) {
    const core::Token token = pg::read_token(text);
    if (token.kind == TokenKind::atomic) return finish_atomic(pg::open_claim(token), ending);
    finish_leased(hold(token), ending);
}

// An atomic claim's lock stays until the transaction ends: what it did before may still commit.
void release(std::optional<std::string_view> text) {
    const core::Token token = pg::read_token(text);
    if (token.kind == TokenKind::atomic) return note_released(pg::open_claim(token));
    release_leased(hold(token));
}

}  // namespace idem::api
