// idem.renew() and idem.checkpoint(): extend a leased claim, and store how far its operation got;
// and the leased claim behind a token, for the functions that end it.
//
// Both commit durably, as the claim did: the caller relies on them when it goes on outside the
// database.
#include "api/lease.hpp"

#include "api/admission.hpp"
#include "api/locked_key.hpp"
#include "pg/store/key_lock.hpp"
#include "pg/store/token.hpp"

namespace idem::api {
namespace {

using core::Presence;

// Nothing for a table that was never made for records, or is gone. One that has a fault raises it,
// because the record may be there.
std::optional<pg::Key> key_in(Oid table, const core::Digest& digest) {
    if (table != pg::common_records && !pg::is_marked_table(table)) return std::nullopt;
    return pg::key_behind(table, digest);
}

// What this transaction has claimed is where it was claimed. Otherwise the token names the table.
// If that is not idem.record, the table that the transaction has chosen comes first: another server
// has other OIDs, and a move may leave a copy behind.
std::optional<pg::Key> find_key(const core::Token& token) {
    const pg::Claim* known = pg::find_claim(token.digest);
    if (known != nullptr && known->token == token) return key_in(known->table, token.digest);
    const Oid chosen = pg::chosen_records();
    if (token.table != pg::common_records && chosen != pg::common_records)
        if (const auto key = key_in(chosen, token.digest)) return key;
    return key_in(token.table, token.digest);
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
    auto key = find_key(token);
    const pg::Scope* scope = key ? pg::find_scope_by_id(key->scope_id) : nullptr;
    if (scope == nullptr || !has_privs_of_role(GetUserId(), scope->owner)) raise_lease_lost();
    return {scope, *key};
}

// Why the token is fenced off, for users of the scope, which could look the key up. NULL if
// the record does not tell.
const char* how_lost(const core::Token& token, const pg::Found& found) {
    const pg::Record& record = found.record;
    const auto attempt = static_cast<std::int32_t>(token.attempt);
    if (found.presence == Presence::absent) return nullptr;
    if (record.attempt() > attempt)
        return psprintf("Attempt %d has taken the operation over.", record.attempt());
    if (record.attempt() == attempt && !record.nonce())
        return "The attempt was released by its holder, or revoked by an administrator.";
    return nullptr;
}

// What this transaction remembers of the claim. A claim of an earlier transaction is added here.
pg::Claim& remember_lease(const core::Token& token, const KeyCall& call, const pg::Record& record) {
    pg::Claim* known = pg::find_claim(token.digest);
    if (known != nullptr && known->token == token) return *known;
    check_open_claims(call.key.scope_id);
    pg::Claim claim(call.key, call.scope->name, token);
    claim.fingerprint = record.fingerprint();
    claim.created = record.created();
    claim.ttl = ttl_of(record);
    return pg::remember_claim(claim);
}

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

}  // namespace

LeasedClaim lock_leased_claim(const core::Token& token) {
    Assert(token.kind == core::TokenKind::leased);
    const pg::Claim* known = pg::find_claim(token.digest);
    if (known != nullptr && known->token == token && known->phase != pg::Phase::open)
        pg::refuse_closed(known->phase);
    const KeyCall call = key_named_by(token);
    pg::KeyLock lock(call.key.digest);
    pg::WaitBound bound(call.scope->wait);
    const pg::Found found = find_at_rest(call.key, lock, bound);
    check_in_snapshot(found);
    const TimestampTz now = GetCurrentTimestamp();
    // An atomic claim of this transaction that has taken the operation over has written no row yet.
    if (known != nullptr && known->phase == pg::Phase::open && known->token.attempt > token.attempt)
        raise_lease_lost();
    const bool same_attempt = found.record.nonce() == static_cast<std::int64_t>(token.random) &&
                              found.record.attempt() == static_cast<std::int32_t>(token.attempt);
    switch (core::judge_token(found_row(found, *call.scope), same_attempt, now)) {
        case core::TokenStanding::lost:
            raise_lease_lost(how_lost(token, found));
        case core::TokenStanding::finished:
            pg::refuse_closed(pg::Phase::completed);
        case core::TokenStanding::holds:
            break;
    }
    return {call, found, &remember_lease(token, call, found.record), bound};
}

void check_usable(const core::Token& token) {
    if (token.kind == core::TokenKind::leased)
        (void)key_named_by(token);
    else
        (void)pg::claim_of_token(token);
}

IDEM_FUNCTION(idem_renew) {
    require_writable("renew", read_by_lookup);
    const auto lease = pg::duration_arg(fcinfo, 1, "lease", pg::Sign::positive);
    LeasedClaim leased = lease_arg(fcinfo, "renew");
    pg::NewRecord record(leased.found.record);
    record.set_lease_end(GetCurrentTimestamp() + lease.value_or(leased.scope->lease));
    record.set_expires(*record.lease_end() + ttl_of(leased.found.record));
    replace_record(leased.key, leased.found, record, leased.bound);
    pg::commit_durably();
    PG_RETURN_TIMESTAMPTZ(*record.lease_end());
}

IDEM_FUNCTION(idem_checkpoint) {
    require_writable("checkpoint", read_by_lookup);
    const auto name = pg::text_arg(fcinfo, 1);
    if (!name) report::missing_argument("name");
    if (name->empty() || name->size() > core::max_key_bytes)
        report::invalid_argument("name", "The name must have 1 to 255 bytes.",
                                 "Pass a short name of the step that is done, such as 'charged'.");
    Jsonb* state = pg::jsonb_arg(fcinfo, 2);
    LeasedClaim leased = lease_arg(fcinfo, "checkpoint");
    check_size("recovery state", *leased.scope, {state});
    pg::NewRecord record(leased.found.record);
    record.set_recovery_point(pg::text_of(*name));
    record.set_recovery_state(state);
    replace_record(leased.key, leased.found, record, leased.bound);
    pg::commit_durably();
    PG_RETURN_VOID();
}

}  // namespace idem::api
