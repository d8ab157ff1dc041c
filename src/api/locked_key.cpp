#include "api/locked_key.hpp"

#include "api/admission.hpp"
#include "core/decision.hpp"
#include "core/duration.hpp"
#include "pg/boundary.hpp"
#include "pg/report.hpp"
#include "pg/secret.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;
using core::Presence;

// ---- A key at rest ------------------------------------------------------------------------------

// An expired row that is being deleted, most likely by the purger, counts as at rest: it does not
// bind the key, whether or not the deletion commits.
bool is_at_rest(const pg::Found& found) {
    const bool expired =
        found.presence == Presence::deleting && found.record.expires <= GetCurrentTimestamp();
    return expired || !found.writer.valid();
}

}  // namespace

pg::Found find_at_rest(const pg::KeyName& name, pg::KeyLock& lock, const pg::WaitBound& bound) {
    acquire(lock, name.key, bound);
    for (;;) {
        const pg::Records records = pg::Records::to_write(name.table);
        pg::check_place(name.scope_id, name.table);
        const pg::Found found = pg::probe(records, name);
        records.close();
        if (is_at_rest(found)) return found;
        pg::free_contents(found.record);  // a call may look many times
        give_way(lock, name.key, found.writer, bound);
    }
}

void acquire(pg::KeyLock& lock, std::string_view key, const pg::WaitBound& bound) {
    if (!lock.acquire(bound)) refuse_in_flight(key, lock.holder().value_or(report::Holder{}));
}

void give_way(pg::KeyLock& lock, std::string_view key, const pg::RowWriter& writer,
              const pg::WaitBound& bound) {
    lock.release();
    if (!bound.wait_for(writer)) refuse_in_flight(key, pg::holder_of(writer.xid));
    acquire(lock, key, bound);
}

bool is_live(const pg::Found& found) {
    return found.presence == Presence::own ||
           (found.presence != Presence::absent && found.record.expires > GetCurrentTimestamp());
}

void check_in_snapshot(const pg::Found& found) {
    if (found.presence != Presence::own && !found.in_snapshot)
        report::serialization_failure(
            "The key's record was committed after this transaction's snapshot was taken.");
}

void check_written(std::string_view key, const pg::WriteResult& writing) {
    if (writing.outcome == pg::WriteOutcome::blocked)
        refuse_in_flight(key, pg::holder_of(writing.in_the_way));
}

bool is_open_here(const core::Digest& digest) {
    const pg::Claim* mine = pg::find_claim(digest);
    return mine != nullptr && mine->phase == pg::Phase::open;
}

report::Holder lease_of(const pg::Record& record) {
    return {.pid = std::nullopt,
            .since = record.created,
            .lease_end = record.lease_end,
            .released = !record.nonce};
}

std::int64_t retry_after(const report::Holder& holder) {
    const TimestampTz now = GetCurrentTimestamp();
    if (holder.released) return std::max<TimestampTz>(*holder.lease_end - now, 0);
    const std::int64_t age = now - holder.since.value_or(now);
    return holder.lease_end ? core::retry_after(age, *holder.lease_end - now)
                            : core::retry_after(age);
}

void refuse_in_flight(std::string_view key, const report::Holder& holder) {
    report::in_progress(key, holder, retry_after(holder), report::WaitSetBy::scope);
}

void refuse_open_here(const pg::KeyName& name, const char* call) {
    if (!is_open_here(name.digest)) return;
    report::claimed_by_this_transaction(
        name.key, psprintf("Release the claim with idem.release(), or call %s in another "
                           "transaction after this one has ended.",
                           call));
}

void replace_record(const pg::KeyName& name, const pg::Found& found, const pg::Record& record,
                    const pg::WaitBound& bound) {
    check_in_snapshot(found);
    const pg::Records records = pg::Records::to_write(name.table);
    const pg::WriteResult writing = pg::write_over(records, name, record, found, bound);
    records.close();
    check_written(name.key, writing);
}

// ---- A leased claim -----------------------------------------------------------------------------

namespace {

struct NamedKey {
    const pg::Scope* scope;
    pg::KeyName name;
};

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
NamedKey key_named_by(const core::Token& token) {
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
pg::Claim& remember(const core::Token& token, const NamedKey& key, const pg::Record& record) {
    pg::Claim* known = pg::find_claim(token.digest);
    if (known != nullptr && known->token == token) return *known;
    check_open_claims(key.name.scope_id);
    pg::Claim claim{};
    claim.token = token;
    claim.scope_id = key.name.scope_id;
    claim.table = key.name.table;
    claim.scope_name = key.scope->name;
    claim.tenant = key.name.tenant;
    claim.key = key.name.key;
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
    const NamedKey key = key_named_by(token);
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
    return {key.scope, key.name, found, &remember(token, key, found.record), bound};
}

LeasedClaim lock_leased_claim(std::optional<std::string_view> text, const char* function) {
    const core::Token token = pg::read_token(text);
    if (token.kind != core::TokenKind::leased)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("idem.%s() needs a leased claim", function),
                        errdetail("The token is of an atomic claim, which lasts until its "
                                  "transaction ends."),
                        errhint("Pass \"lease\" to idem.claim() to make a leased claim.")));
    return lock_leased_claim(token);
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

std::int64_t ttl_of(const pg::Record& record) {
    Assert(record.state == core::State::in_progress);
    return record.expires - record.lease_end.value_or(record.created);
}

TimestampTz expires_after(const pg::Record& record, TimestampTz lease_end) {
    return lease_end + ttl_of(record);
}

}  // namespace idem::api
