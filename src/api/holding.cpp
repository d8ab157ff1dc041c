#include "api/holding.hpp"

#include "api/settled.hpp"
#include "core/decision.hpp"
#include "pg/guc.hpp"
#include "pg/report.hpp"
#include "pg/token_text.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;
using core::Presence;

// Whose key the token names. Nobody learns from it: whoever may not use the scope is told the same
// as for a key that is not there.
struct Named {
    const pg::Scope* scope;
    pg::KeyName name;
};

Named named_by(const core::Token& token) {
    const pg::Records records = pg::Records::to_read();
    const auto name = pg::name_behind(records, token.digest);
    records.close();
    const pg::Scope* scope = name ? pg::find_scope_by_id(name->scope_id) : nullptr;
    if (scope == nullptr || !has_privs_of_role(GetUserId(), scope->owner)) report::lease_lost();
    return {scope, *name};
}

core::TokenSighting sighting(const core::Token& token, const pg::Found& found,
                             const pg::Scope& scope, TimestampTz now) {
    const pg::Record& record = found.record;
    const bool own = found.presence == Presence::own;
    return {
        .binds = found.presence != Presence::absent && (own || record.expires > now),
        .same_attempt = record.nonce == static_cast<std::int64_t>(token.random) &&
                        record.attempt == static_cast<std::int32_t>(token.attempt),
        .state = record.state,
        .attempt = record.attempt,
        .lease_end = record.lease_end.value_or(0),
        .max_attempts = scope.max_attempts,
    };
}

// For a user of the scope, who could look the key up; NULL when the record does not tell.
const char* how_lost(const core::Token& token, const pg::Found& found) {
    const pg::Record& record = found.record;
    const auto attempt = static_cast<std::int32_t>(token.attempt);
    if (found.presence == Presence::absent) return nullptr;
    if (record.attempt > attempt)
        return psprintf("Attempt %d has taken the operation over.", record.attempt);
    if (record.attempt == attempt && !record.nonce) return "The attempt was released.";
    if (record.attempt == attempt && record.nonce == static_cast<std::int64_t>(token.random) &&
        record.state == core::State::in_progress && record.expires > GetCurrentTimestamp())
        return "The lease has ended, and the attempt was the last that the scope's "
               "\"max_attempts\" allows.";
    return nullptr;
}

// The transaction's note of the claim: made here when another transaction claimed it.
pg::Claim& note(const core::Token& token, const Named& named, const pg::Record& record) {
    pg::Claim* known = pg::find_claim(token.digest);
    if (known != nullptr && known->token == token) return *known;
    if (pg::claims_held() >= pg::guc::max_open_claims)
        report::too_many_open_claims(pg::guc::max_open_claims);
    pg::Claim claim{};
    claim.token = token;
    claim.scope_id = named.name.scope_id;
    claim.scope_name = named.scope->name;
    claim.tenant = named.name.tenant;
    claim.key = named.name.key;
    claim.fingerprint = record.fingerprint;
    claim.created = record.created;
    claim.ttl = ttl_of(record);
    return pg::remember_claim(claim);
}

}  // namespace

Holding hold(const core::Token& token) {
    const pg::Claim* known = pg::find_claim(token.digest);
    if (known != nullptr && known->token == token) pg::refuse_closed(*known);
    const Named named = named_by(token);
    pg::KeyLock lock(named.name.digest);
    const pg::WaitBound bound(named.scope->wait);
    const pg::Found found = settled(named.name, lock, bound);
    if (found.presence == Presence::committed && !found.in_snapshot)
        report::serialization_failure(
            "The key's record was committed after this transaction's snapshot was taken.");
    const TimestampTz now = GetCurrentTimestamp();
    switch (core::judge_token(sighting(token, found, *named.scope, now), now)) {
        case core::TokenStanding::lost:
            report::lease_lost(how_lost(token, found));
        case core::TokenStanding::finished:
            report::claim_finished();
        case core::TokenStanding::holds:
            break;
    }
    return {named.scope, named.name, found.record, &note(token, named, found.record), bound};
}

Holding hold_leased(std::optional<std::string_view> text, const char* function) {
    const core::Token token = pg::read_token(text);
    if (token.kind != core::TokenKind::leased) report::not_leased(function);
    return hold(token);
}

void check_usable(const core::Token& token) {
    if (token.kind == core::TokenKind::leased) {
        (void)named_by(token);
        return;
    }
    const pg::Claim* claim = pg::find_claim(token.digest);
    if (claim == nullptr || claim->token != token) report::foreign_claim();
}

void update(const Holding& holding, const pg::Record& record) {
    const pg::Records records = pg::Records::to_write();
    const pg::Writing writing =
        pg::write_record(records, holding.name, record, pg::Over::outlived, holding.bound);
    records.close();
    check_written(holding.name.key, writing);
}

std::int64_t ttl_of(const pg::Record& record) {
    return record.expires - record.lease_end.value_or(record.created);
}

TimestampTz expires_after(const pg::Record& record, TimestampTz lease_end) {
    return lease_end + ttl_of(record);
}

}  // namespace idem::api
