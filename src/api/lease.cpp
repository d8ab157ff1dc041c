// idem.renew() and idem.checkpoint(): extend a leased claim, and store how far its operation got;
// and the leased claim behind a token, for the functions that end it.
//
// Both commit durably, as the claim did: the caller relies on them when it goes on outside the
// database.
#include "api/lease.hpp"

#include "api/admission.hpp"
#include "api/locked_key.hpp"
#include "core/decision.hpp"
#include "core/key.hpp"
#include "pg/boundary.hpp"
#include "pg/report.hpp"
#include "pg/secret.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;
using core::Presence;

// Nothing for a table that was never made for records, or is gone. One that has a fault raises it,
// because the record may be there.
std::optional<pg::KeyName> name_in(Oid table, const core::Digest& digest) {
    if (table != pg::common_records && !pg::is_marked_table(table)) return std::nullopt;
    const pg::Records records = pg::Records::to_read(table);
    auto name = pg::name_behind(records, digest);
    records.close();
    return name;
}

// What this transaction has claimed is where it was claimed. Otherwise the token names the table.
// If that is not idem.record, the table that the transaction has chosen comes first: another server
// has other OIDs, and a move may leave a copy behind.
std::optional<pg::KeyName> find_name(const core::Token& token) {
    const pg::Claim* known = pg::find_claim(token.digest);
    if (known != nullptr && known->token == token) return name_in(known->table, token.digest);
    const Oid chosen = pg::chosen_records();
    if (token.table != pg::common_records && chosen != pg::common_records)
        if (const auto name = name_in(chosen, token.digest)) return name;
    return name_in(token.table, token.digest);
}

// Fenced off. Without a detail it says the same whether the key was taken over, has no record, or
// is of a scope that the caller may not use; a detail is for users of the scope only.
[[noreturn]] void raise_lease_lost(const char* detail = nullptr) {
    ereport(ERROR,
            (report::own_error("lease_lost"), errmsg("lease of this attempt is lost"),
             detail != nullptr
                 ? errdetail_internal("%s", detail)
                 : errdetail("The token names no attempt that you may continue: its claim was "
                             "rolled back or is not committed yet, or the operation was released, "
                             "taken over or forgotten, or has expired, or you may not use its "
                             "scope."),
             errhint("Stop working on the operation and roll back, or claim its key again.")));
}

// The key that the token names. A caller that may not use the scope gets the same error as for a
// key without a record, so it learns nothing.
KeyCall key_named_by(const core::Token& token) {
    auto name = find_name(token);
    const pg::Scope* scope = name ? pg::find_scope_by_id(name->scope_id) : nullptr;
    if (scope == nullptr || !has_privs_of_role(GetUserId(), scope->owner)) raise_lease_lost();
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
        .extra_attempts = record.extra_attempts,
    };
}

// Why the token is fenced off, for users of the scope, which could look the key up. NULL if
// the record does not tell.
const char* how_lost(const core::Token& token, const pg::Found& found) {
    const pg::Record& record = found.record;
    const auto attempt = static_cast<std::int32_t>(token.attempt);
    if (found.presence == Presence::absent) return nullptr;
    if (record.attempt > attempt)
        return psprintf("Attempt %d has taken the operation over.", record.attempt);
    if (record.attempt == attempt && !record.nonce)
        return "The attempt was released by its holder, or revoked by an administrator.";
    if (record.attempt == attempt && record.nonce == static_cast<std::int64_t>(token.random) &&
        record.state == core::State::in_progress && record.expires > GetCurrentTimestamp())
        return "The lease has ended, and the attempt was the last that the scope's "
               "\"max_attempts\" allows.";
    return nullptr;
}

// What this transaction remembers of the claim. A claim of an earlier transaction is added here.
pg::Claim& remember(const core::Token& token, const KeyCall& key, const pg::Record& record) {
    pg::Claim* known = pg::find_claim(token.digest);
    if (known != nullptr && known->token == token) return *known;
    check_open_claims(key.name.scope_id);
    pg::Claim claim(key.name, key.scope->name, token);
    claim.fingerprint = record.fingerprint;
    claim.created = record.created;
    claim.ttl = ttl_of(record);
    return pg::remember_claim(claim);
}

}  // namespace

LeasedClaim lock_leased_claim(const core::Token& token) {
    Assert(token.kind == core::TokenKind::leased);
    const pg::Claim* known = pg::find_claim(token.digest);
    if (known != nullptr && known->token == token && known->phase != pg::Phase::open)
        pg::refuse_closed(known->phase);
    const KeyCall key = key_named_by(token);
    pg::KeyLock lock(key.name.digest);
    const pg::WaitBound bound(key.scope->wait);
    const pg::Found found = find_at_rest(key.name, lock, bound);
    check_in_snapshot(found);
    const TimestampTz now = GetCurrentTimestamp();
    switch (core::judge_token(sighting(token, found, *key.scope, now), now)) {
        case core::TokenStanding::lost:
            raise_lease_lost(how_lost(token, found));
        case core::TokenStanding::finished:
            pg::refuse_closed(pg::Phase::finished);
        case core::TokenStanding::holds:
            break;
    }
    return {key, found, &remember(token, key, found.record), bound};
}

void check_usable(const core::Token& token) {
    if (token.kind == core::TokenKind::leased)
        (void)key_named_by(token);
    else
        (void)pg::claim_of_token(token);
}

void update_record(const LeasedClaim& leased, const pg::Record& record) {
    replace_record(leased.name, leased.found, record, leased.bound);
}

// ---- The SQL functions --------------------------------------------------------------------------

namespace {

LeasedClaim lease_arg(FunctionCallInfo fcinfo, const char* function) {
    const core::Token token = pg::read_token(pg::text_arg(fcinfo, 0));
    if (token.kind != core::TokenKind::leased)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("idem.%s() needs a leased claim", function),
                        errdetail("The token is of an atomic claim, which lasts until its "
                                  "transaction ends."),
                        errhint("Pass \"lease\" to idem.claim() to make a leased claim.")));
    return lock_leased_claim(token);
}

// A checked name of a recovery point.
text* name_arg(FunctionCallInfo fcinfo) {
    const auto name = pg::text_arg(fcinfo, 1);
    if (!name) report::missing_argument("name");
    if (name->empty() || name->size() > core::max_key_bytes)
        report::invalid_argument("name", "The name must have 1 to 255 bytes.",
                                 "Pass a short name of the step that is done, such as 'charged'.");
    return pg::text_of(*name);
}

}  // namespace
}  // namespace idem::api

IDEM_FUNCTION(idem_renew) {
    using namespace idem;
    api::require_writable("idem.renew()", api::read_by_lookup);
    const auto lease = pg::positive_duration_arg(fcinfo, 1, "lease");
    const api::LeasedClaim leased = api::lease_arg(fcinfo, "renew");
    pg::Record record = leased.found.record;
    record.lease_end = GetCurrentTimestamp() + lease.value_or(leased.scope->lease);
    record.expires = api::expires_after(leased.found.record, *record.lease_end);
    api::update_record(leased, record);
    pg::commit_durably();
    PG_RETURN_TIMESTAMPTZ(*record.lease_end);
}

IDEM_FUNCTION(idem_checkpoint) {
    using namespace idem;
    api::require_writable("idem.checkpoint()", api::read_by_lookup);
    text* name = api::name_arg(fcinfo);
    Jsonb* state = pg::jsonb_arg(fcinfo, 2);
    const api::LeasedClaim leased = api::lease_arg(fcinfo, "checkpoint");
    pg::Record record = leased.found.record;
    record.recovery_point = name;
    record.recovery_state = state;
    api::check_unfinished_size("recovery state", *leased.scope, record);
    api::update_record(leased, record);
    pg::commit_durably();
    PG_RETURN_VOID();
}
