// idem.take(): finishes what was begun. It takes over the unfinished operation of a scope that has
// been due longest, whatever its key.
//
// Locking: none while it searches (pg/store/due_queue). Takers never wait for each other: the key
// lock is only tried, and an operation whose key another transaction holds is left to it.
#include "api/arguments.hpp"
#include "api/claim.hpp"
#include "api/locked_key.hpp"
#include "pg/store/due_queue.hpp"
#include "pg/store/key_lock.hpp"
#include "pg/store/token.hpp"

namespace idem::api {
namespace {

using core::SameRequest;
using core::Verdict;

struct TakeCall {
    const pg::Scope* scope;
    pg::DueFilter filter;
    std::int64_t lease;  // microseconds
    std::int64_t wait;   // microseconds
};

// ---- One operation ------------------------------------------------------------------------------

// Judges the row as a claim with the same request would. An operation that this transaction's
// snapshot cannot see is due all the same: the caller raises 40001 if it finds no other.
bool is_due(const TakeCall& call, const pg::Found& found, TimestampTz now) {
    pg::Found seen = found;
    seen.in_snapshot = true;
    return found.record.scope_id() == call.filter.scope_id &&
           (!call.filter.tenant || found.record.tenant() == *call.filter.tenant) &&
           core::decide(found_row(seen, *call.scope), SameRequest::yes, now) == Verdict::take_over;
}

// Takes the operation over, unless another transaction holds its key, has finished it or is
// changing its row. Sets unseen if only the transaction's snapshot is in the way. The operation
// keeps the TTL of the claim that began it.
std::optional<ClaimResult> take_one(const TakeCall& call, const pg::Due& due, bool& unseen) {
    if (is_open_here(due.digest)) return std::nullopt;
    pg::KeyLock lock(due.digest);
    if (!lock.try_acquire()) return std::nullopt;
    const pg::Found found = pg::probe_digest(call.filter.scope_id, call.filter.table, due.digest);
    const TimestampTz now = GetCurrentTimestamp();
    const bool due_now = is_due(call, found, now);
    if (due_now && !found.in_snapshot && found.presence != core::Presence::own) {
        unseen = true;
    } else if (due_now) {
        ClaimCall claim{{call.scope, found.record.key_in(call.filter.table)}};
        claim.ttl = ttl_of(found.record);
        claim.lease = call.lease;
        const ClaimResult result = take_over(claim, found, now);
        if (result.outcome == Outcome::claimed) return result;
        Assert(result.outcome == Outcome::in_progress);
    }
    lock.release();
    return std::nullopt;
}

// ---- The operation that has been due longest ----------------------------------------------------

// Runs in a memory context of its own, in which each operation that is not taken leaves a copy of
// its record.
std::optional<ClaimResult> take_from(const TakeCall& call, pg::DueQueue& queue) {
    bool unseen = false;
    while (const auto due = queue.next()) {
        CHECK_FOR_INTERRUPTS();
        if (const auto taken = take_one(call, *due, unseen)) {
            queue.note_taken();
            return taken;
        }
        MemoryContextReset(CurrentMemoryContext);
    }
    if (unseen)
        report::serialization_failure(
            "An operation that is due was changed after this transaction's snapshot was taken.");
    return std::nullopt;
}

std::optional<ClaimResult> take(const TakeCall& call) {
    check_open_claims(call.scope->id);
    pg::WaitBound bound(call.wait);
    const MemoryContext memory =
        AllocSetContextCreate(CurrentMemoryContext, "idem take", ALLOCSET_SMALL_SIZES);
    for (;;) {
        pg::DueQueue queue(call.filter);
        const MemoryContext before = MemoryContextSwitchTo(memory);
        const auto taken = take_from(call, queue);
        MemoryContextSwitchTo(before);
        // The wait holds no lock.
        if (taken || !bound.wait_for(pg::scope_event(call.scope->id), queue.next_due())) {
            pg::withdraw_wait();
            return taken;
        }
        MemoryContextReset(memory);
    }
}

enum Argument { arg_tenant = 1, arg_lease, arg_wait };

enum Column {
    column_token,
    column_key,
    column_tenant,
    column_request,
    column_attempt,
    column_recovery_point,
    column_recovery_state,
    column_last_error,
    column_created_at,
    column_expires_at,
    columns
};

// Where tenants are roles, only superusers may act for every one.
std::optional<std::string_view> permitted(const pg::Scope& scope,
                                          std::optional<std::string_view> tenant) {
    if (!tenant && (scope.tenant_from == pg::TenantFrom::argument ||
                    (superuser_arg(GetOuterUserId()) && superuser())))
        return std::nullopt;
    return tenant_in(scope, tenant.value_or(""));
}

TakeCall read_take_call(FunctionCallInfo fcinfo) {
    // NULL means every tenant, unless the setting idem.tenant names one.
    const auto given = pg::text_arg(fcinfo, arg_tenant);
    std::optional tenant = checked_tenant(given);
    if (!given && tenant->empty()) tenant = std::nullopt;
    const auto lease = pg::duration_arg(fcinfo, arg_lease, "lease", pg::Sign::positive);
    const auto wait = pg::duration_arg(fcinfo, arg_wait, "wait", pg::Sign::not_negative);
    const pg::Scope& scope = pg::usable_scope(pg::text_arg(fcinfo, arg_scope), "take");
    return {&scope,
            {scope.id, permitted(scope, tenant), scope.max_attempts, pg::records_of(scope)},
            lease.value_or(scope.lease),
            wait.value_or(0)};
}

pg::Row<columns> take_row(const std::optional<ClaimResult>& taken) {
    pg::Row<columns> row;
    if (!taken) return row;
    const pg::Claim& claim = *taken->claim;
    const pg::Record& record = taken->record;
    row.set_text(column_token, pg::token_text(claim.token).view());
    row.set_text(column_key, claim.key);
    row.set_text(column_tenant, claim.tenant);
    row.set_pointer(column_request, record.request());
    row.set_int(column_attempt, static_cast<std::int32_t>(claim.token.attempt));
    row.set_pointer(column_recovery_point, record.recovery_point());
    row.set_pointer(column_recovery_state, record.recovery_state());
    row.set_pointer(column_last_error, record.error());
    row.set_time(column_created_at, claim.created);
    row.set_time(column_expires_at, taken->expires);
    return row;
}

}  // namespace

IDEM_FUNCTION(idem_take) {
    require_writable("take",
                     " To see unfinished operations, use the view "
                     "idem.in_flight.");
    return take_row(take(read_take_call(fcinfo))).as_result_of(fcinfo);
}

}  // namespace idem::api
