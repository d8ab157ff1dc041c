// idem.lookup(): the state of a key, without claiming it.
//
// It reads the newest committed row, not the transaction's snapshot, and asks for the key lock's
// holder. It takes no key lock and writes nothing. It also works on a standby, which does not see
// the claims in flight on the primary. With a wait, it looks again until the operation has ended.
#include "api/lookup.hpp"

#include "api/arguments.hpp"
#include "api/locked_key.hpp"
#include "pg/lock.hpp"
#include "pg/open_claims.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;
using core::Presence;

enum Column {
    column_state,
    column_attempt,
    column_response,
    column_status,
    column_headers,
    column_body,
    column_error,
    column_created_at,
    column_expires_at,
    column_lease_end,
    column_holder_pid,
    column_since,
    column_redacted,
    column_completed_at,
    columns
};
using Result = LookupRow;
static_assert(columns == lookup_columns);

// ---- One look -----------------------------------------------------------------------------------

enum class Standing {
    absent,   // no record binds the key, and no transaction holds it
    claimed,  // the key is in progress, and no record says so
    leased,   // a record says so
    ended,    // completed, failed or exhausted
};

struct Sight {
    Standing standing;
    pg::Found found{};
    std::optional<report::Holder> holder{};  // another transaction that holds the key
    std::int32_t attempt = core::first_attempt;
};

// Whether the operation completed or failed, or its last attempt's lease has ended.
bool has_ended(const pg::Found& found, const pg::Scope& scope) {
    const pg::Record& record = found.record;
    return is_live(found) &&
           (record.state != core::State::in_progress ||
            core::exhausted(record.attempt, scope.max_attempts, record.extra_attempts,
                            record.lease_end.value_or(0), GetCurrentTimestamp()));
}

pg::Found probe(const pg::KeyName& name) {
    const pg::Records records = pg::Records::to_read(name.table);
    const pg::Found found = pg::probe(records, name);
    records.close();
    return found;
}

Sight look_past_own_claims(const pg::KeyName& name, const pg::Scope& scope) {
    const bool standby = RecoveryInProgress();
    pg::Found found = probe(name);
    if (has_ended(found, scope)) return {Standing::ended, found};
    const auto holder = standby ? std::nullopt : pg::KeyLock(name.digest).holder();
    // A holder may have committed between the first look and the look for a holder.
    if (!holder && !is_live(found)) found = probe(name);
    if (has_ended(found, scope)) return {Standing::ended, found};
    if (is_live(found)) return {Standing::leased, found, holder};
    const bool inserting = found.presence == Presence::inserting && !standby;
    return {holder || inserting ? Standing::claimed : Standing::absent, found, holder};
}

Sight look(const pg::KeyName& name, const pg::Scope& scope) {
    const pg::Claim* mine = pg::find_claim(name.digest);
    if (mine == nullptr || mine->phase != pg::Phase::open) return look_past_own_claims(name, scope);
    const report::Holder here{MyProcPid, mine->created, std::nullopt, std::nullopt};
    if (mine->token.kind == core::TokenKind::atomic)
        return {Standing::claimed, {}, here, static_cast<std::int32_t>(mine->token.attempt)};
    Sight sight = look_past_own_claims(name, scope);
    sight.holder = here;
    return sight;
}

// ---- The row ------------------------------------------------------------------------------------

Result absent_row(const pg::Scope& scope, std::string_view tenant) {
    require_tenant(scope, tenant);
    if (RecoveryInProgress())
        ereport(NOTICE, (errmsg("key is not known on this standby"),
                         errdetail("A standby may lag behind its primary, and does not see claims "
                                   "in flight."),
                         errhint("Call idem.lookup() on the primary before you execute the "
                                 "operation.")));
    Result row;
    row.set_text(column_state, "absent");
    return row;
}

Result held_row(const Sight& sight) {
    const report::Holder holder = sight.holder.value_or(report::Holder{});
    Result row;
    row.set_text(column_state, "in_progress");
    row.set_int(column_attempt, sight.attempt);
    row.set_int(column_holder_pid, holder.pid);
    row.set_time(column_since, holder.since);
    if (sight.standing == Standing::claimed) return row;
    const pg::Record& record = sight.found.record;
    row.set_int(column_attempt, record.attempt);
    row.set_time(column_since, record.created);
    row.set_time(column_created_at, record.created);
    row.set_time(column_expires_at, record.expires);
    row.set_time(column_lease_end, record.lease_end);
    return row;
}

Result finished_row(const pg::Record& stored, const pg::Scope& scope) {
    pg::Record record = stored;
    pg::hide_outlived_answer(record, scope.answer_ttl, GetCurrentTimestamp());
    Result row;
    row.set_text(column_state, record.state == core::State::completed ? "completed" : "failed");
    row.set_int(column_attempt, record.attempt);
    row.set_int(column_status, record.status);
    row.set_pointer(column_headers, record.headers);
    row.set_pointer(column_response, record.response);
    row.set_pointer(column_body, record.body);
    row.set_pointer(column_error, record.error);
    row.set_time(column_created_at, record.created);
    row.set_time(column_expires_at, record.expires);
    row.set_time(column_since, record.created);
    row.set_bool(column_redacted, record.redacted);
    row.set_time(column_completed_at, pg::completed_at(record));
    return row;
}

Result row_of(const Sight& sight, const pg::KeyName& name, const pg::Scope& scope) {
    switch (sight.standing) {
        case Standing::absent:
            return absent_row(scope, name.tenant);
        case Standing::claimed:
        case Standing::leased:
            return held_row(sight);
        case Standing::ended:
            return finished_row(sight.found.record, scope);
    }
    pg_unreachable();
}

// ---- Waiting ------------------------------------------------------------------------------------

// Whether the operation may end while this transaction waits. An absent key is of interest only on
// a standby, where it may still arrive. A key that this transaction holds stays as it is.
bool is_awaited(const pg::KeyName& name, const Sight& sight) {
    if (sight.standing == Standing::ended || sight.found.presence == Presence::own) return false;
    if (RecoveryInProgress()) return true;
    return sight.standing != Standing::absent && !pg::KeyLock(name.digest).is_held();
}

// Waits for what may end the operation: a transaction, if one is known, or else an event. It takes
// no key lock, which would keep the key from a claim. Returns false when the bound came first.
bool wait_for_change(const pg::KeyName& name, const Sight& sight, const pg::WaitBound& bound) {
    const bool leased = sight.standing == Standing::leased;
    const TimestampTz lease_end = leased ? sight.found.record.lease_end.value_or(0) : 0;
    const bool running = lease_end > GetCurrentTimestamp();
    if (!RecoveryInProgress()) {
        if (sight.found.writer.valid()) return bound.wait_for(sight.found.writer);
        // While a lease runs, a transaction that does not write the row releases the lock soon.
        if (sight.holder && !running) return pg::KeyLock(name.digest).wait_for_holder(bound);
    }
    return bound.nap(pg::key_event(name.digest), running ? lease_end : DT_NOEND);
}

Sight look_until_ended(const pg::KeyName& name, const pg::Scope& scope, std::int64_t wait) {
    const pg::WaitBound bound(wait);
    const MemoryContext memory =
        AllocSetContextCreate(CurrentMemoryContext, "idem lookup", ALLOCSET_SMALL_SIZES);
    for (;;) {
        MemoryContextReset(memory);  // a call may look many times
        const MemoryContext before = MemoryContextSwitchTo(memory);
        const Sight sight = look(name, scope);
        const bool again = is_awaited(name, sight) && wait_for_change(name, sight, bound);
        MemoryContextSwitchTo(before);
        if (again) continue;
        pg::withdraw_wait();
        return sight;
    }
}

}  // namespace

LookupRow look_up(const pg::KeyName& name, const pg::Scope& scope, std::int64_t wait) {
    const Sight sight = wait > 0 ? look_until_ended(name, scope, wait) : look(name, scope);
    return row_of(sight, name, scope);
}

}  // namespace idem::api

IDEM_FUNCTION(idem_lookup) {
    using namespace idem;
    api::require_leader("idem.lookup()");
    const auto wait = pg::nonnegative_duration_arg(fcinfo, 3, "wait");
    const api::KeyCall call = api::read_key(fcinfo, 2, "lookup");
    api::LookupRow row = api::look_up(call.name, *call.scope, wait.value_or(0));
    return row.as_result_of(fcinfo);
}
