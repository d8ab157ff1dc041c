// idem.take(): finishes what was begun. It takes over the unfinished operation of a scope that has
// been due longest, whatever its key.
//
// Takers never wait for each other: a key that another transaction holds is left to it. So each
// operation goes to one taker, and a taker that dies leaves a lease that lapses. A list of what is
// due comes from a search without locks (pg/backlog); under the key lock, the row is read again and
// judged as for a claim, and taken over as by one.
#include "api/arguments.hpp"
#include "api/claim.hpp"
#include "api/locked_key.hpp"
#include "core/duration.hpp"
#include "pg/backlog.hpp"
#include "pg/boundary.hpp"
#include "pg/report.hpp"
#include "pg/secret.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;
using core::Verdict;

struct TakeCall {
    const pg::Scope* scope;
    pg::DueFilter filter;
    std::int64_t lease;  // microseconds
    std::int64_t wait;   // microseconds
};

struct Taken {
    pg::KeyName name;
    ClaimResult result;
};

// ---- One operation ------------------------------------------------------------------------------

// Judges the row as a claim with the same request would. An operation that this transaction's
// snapshot cannot see is due all the same: the caller raises 40001 if it finds no other.
bool is_due(const TakeCall& call, const pg::FoundKey& key, TimestampTz now) {
    pg::Found seen = key.found;
    seen.in_snapshot = true;
    return key.name.scope_id == call.filter.scope_id &&
           (!call.filter.tenant || key.name.tenant == *call.filter.tenant) &&
           judge(seen, true, *call.scope, now) == Verdict::take_over;
}

std::optional<pg::FoundKey> probe(const TakeCall& call, const core::Digest& digest) {
    const pg::Records records = pg::Records::to_write(call.filter.table);
    pg::check_place(call.filter.scope_id, call.filter.table);
    const auto key = pg::probe_digest(records, digest);
    records.close();
    return key;
}

// Takes the operation over, unless another transaction holds its key, has finished it or is
// changing its row. Sets unseen if only the transaction's snapshot is in the way. The operation
// keeps the TTL of the claim that began it.
std::optional<Taken> take_one(const TakeCall& call, const pg::Due& due, bool& unseen) {
    if (is_open_here(due.digest)) return std::nullopt;
    pg::KeyLock lock(due.digest);
    if (!lock.try_acquire()) return std::nullopt;
    const auto key = probe(call, due.digest);
    const TimestampTz now = GetCurrentTimestamp();
    const bool due_now = key && is_due(call, *key, now);
    if (due_now && !key->found.in_snapshot && key->found.presence != core::Presence::own) {
        unseen = true;
    } else if (due_now) {
        const ClaimCall claim{.scope = call.scope,
                              .name = key->name,
                              .request = nullptr,
                              .ttl = ttl_of(key->found.record),
                              .wait = 0,
                              .lease = call.lease,
                              .writes_at_once = true};
        const ClaimResult result = take_over(claim, key->found, now, pg::WaitBound(0));
        if (result.outcome == Outcome::claimed) return Taken{key->name, result};
        Assert(result.outcome == Outcome::in_progress);
    }
    lock.release();
    return std::nullopt;
}

// ---- The operation that has been due longest ----------------------------------------------------

// Goes through the list of an earlier call first, then through lists of its own until one holds all
// that is left. Runs in a memory context of its own, in which each operation that is not taken
// leaves a copy of its record.
std::optional<Taken> take_from(const TakeCall& call, pg::Backlog& backlog) {
    bool unseen = false;
    bool searched = false;
    std::optional<pg::Due> last;
    for (;;) {
        while (const auto due = backlog.next()) {
            CHECK_FOR_INTERRUPTS();
            if (const auto taken = take_one(call, *due, unseen)) return taken;
            MemoryContextReset(CurrentMemoryContext);
            last = due;
        }
        if (searched && !backlog.has_more()) break;
        if (!searched) last = std::nullopt;
        backlog.search(last);
        searched = true;
    }
    if (unseen)
        report::serialization_failure(
            "An operation that is due was changed after this transaction's snapshot was taken.");
    return std::nullopt;
}

std::optional<Taken> take(const TakeCall& call) {
    check_open_claims(call.scope->id);
    const pg::WaitBound bound(call.wait);
    pg::Backlog backlog(call.filter);
    const MemoryContext memory =
        AllocSetContextCreate(CurrentMemoryContext, "idem take", ALLOCSET_SMALL_SIZES);
    for (;;) {
        const MemoryContext before = MemoryContextSwitchTo(memory);
        const auto taken = take_from(call, backlog);
        MemoryContextSwitchTo(before);
        // The wait holds no lock.
        if (taken ||
            !bound.nap(pg::scope_event(call.scope->id), backlog.next_due().value_or(DT_NOEND))) {
            pg::withdraw_wait();
            return taken;
        }
        MemoryContextReset(memory);
    }
}

// ---- The SQL functions --------------------------------------------------------------------------

enum Argument { arg_lease = 1, arg_tenant, arg_wait };

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

// NULL means every tenant, unless the setting idem.tenant names one.
std::optional<std::string_view> tenant_arg(FunctionCallInfo fcinfo) {
    const auto given = pg::text_arg(fcinfo, arg_tenant);
    const std::string_view tenant = checked_tenant(given);
    return given || !tenant.empty() ? std::optional(tenant) : std::nullopt;
}

// Where tenants are roles, only superusers may act for every one.
std::optional<std::string_view> permitted(const pg::Scope& scope,
                                          std::optional<std::string_view> tenant) {
    if (scope.tenant_from == pg::TenantFrom::argument) return tenant;
    if (!tenant && superuser_arg(GetOuterUserId())) return std::nullopt;
    return tenant_in(scope, tenant.value_or(""));
}

TakeCall read_call(FunctionCallInfo fcinfo) {
    const auto tenant = tenant_arg(fcinfo);
    const auto lease = pg::positive_duration_arg(fcinfo, arg_lease, "lease");
    const auto wait = pg::nonnegative_duration_arg(fcinfo, arg_wait, "wait");
    const pg::Scope& scope = pg::usable_scope(pg::text_arg(fcinfo, arg_scope), "take");
    return {&scope,
            {scope.id, permitted(scope, tenant), scope.max_attempts, pg::records_of(scope)},
            lease.value_or(scope.lease),
            wait.value_or(0)};
}

pg::Row<columns> row_of(const std::optional<Taken>& taken) {
    pg::Row<columns> row;
    if (!taken) return row;
    const pg::Claim& claim = *taken->result.claim;
    const pg::Record& record = taken->result.record;
    row.set_text(column_token, pg::token_text(claim.token).view());
    row.set_text(column_key, taken->name.key);
    row.set_text(column_tenant, taken->name.tenant);
    row.set_pointer(column_request, pg::request_of(record));
    row.set_int(column_attempt, static_cast<std::int32_t>(claim.token.attempt));
    row.set_pointer(column_recovery_point, record.recovery_point);
    row.set_pointer(column_recovery_state, record.recovery_state);
    row.set_pointer(column_last_error, record.error);
    row.set_time(column_created_at, claim.created);
    row.set_time(column_expires_at, taken->result.expires);
    return row;
}

}  // namespace
}  // namespace idem::api

IDEM_FUNCTION(idem_take) {
    using namespace idem;
    api::require_writable("idem.take()",
                          " To see unfinished operations, use the view "
                          "idem.in_flight.");
    const api::TakeCall call = api::read_call(fcinfo);
    auto row = api::row_of(api::take(call));
    return row.as_result_of(fcinfo);
}
