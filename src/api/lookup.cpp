// idem.lookup(): the state of a key, without claiming it.
//
// It reads the newest committed row, not the transaction's snapshot, and asks for the key lock's
// holder. It takes no key lock and writes nothing. It also works on a standby, which does not see
// the claims in flight on the primary.
#include "api/lookup.hpp"

#include "api/arguments.hpp"
#include "pg/lock.hpp"
#include "pg/open_claims.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;
using core::Presence;

enum Argument { arg_scope, arg_key, arg_tenant };

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
    columns
};
using Result = LookupRow;
static_assert(columns == lookup_columns);

// ---- The rows -----------------------------------------------------------------------------------

Result absent_row() {
    if (RecoveryInProgress()) report::key_unknown_on_standby();
    Result result;
    result.set_text(column_state, "absent");
    return result;
}

Result held_row(std::int32_t attempt, std::optional<int> pid, std::optional<TimestampTz> since) {
    Result result;
    result.set_text(column_state, "in_progress");
    result.set_int(column_attempt, attempt);
    result.set_int(column_holder_pid, pid);
    result.set_time(column_since, since);
    return result;
}

// pid is that of the process that holds the key at this moment, if there is one.
Result leased_row(const pg::Record& record, std::optional<int> pid) {
    Result result = held_row(record.attempt, pid, record.created);
    result.set_time(column_created_at, record.created);
    result.set_time(column_expires_at, record.expires);
    result.set_time(column_lease_end, record.lease_end);
    return result;
}

Result finished_row(const pg::Record& stored, const pg::Scope& scope) {
    pg::Record record = stored;
    pg::hide_outlived_answer(record, scope.answer_ttl, GetCurrentTimestamp());
    Result result;
    result.set_text(column_state, record.state == core::State::completed ? "completed" : "failed");
    result.set_int(column_attempt, record.attempt);
    result.set_int(column_status, record.status);
    result.set_pointer(column_headers, record.headers);
    result.set_pointer(column_response, record.response);
    result.set_pointer(column_body, record.body);
    result.set_pointer(column_error, record.error);
    result.set_time(column_created_at, record.created);
    result.set_time(column_expires_at, record.expires);
    result.set_time(column_since, record.created);
    result.set_bool(column_redacted, record.redacted);
    return result;
}

// ---- What the row says --------------------------------------------------------------------------

// Whether the record binds the key now: it is committed and has not expired, or is this
// transaction's.
bool binds(const pg::Found& found) {
    switch (found.presence) {
        case Presence::own:
            return true;
        case Presence::committed:
        case Presence::deleting:
            return found.record.expires > GetCurrentTimestamp();
        default:
            return false;
    }
}

// Whether the operation completed or failed, or its last attempt's lease has ended.
bool has_ended(const pg::Found& found, const pg::Scope& scope) {
    const pg::Record& record = found.record;
    return binds(found) &&
           (record.state != core::State::in_progress ||
            core::exhausted(record.attempt, scope.max_attempts, record.extra_attempts,
                            record.lease_end.value_or(0), GetCurrentTimestamp()));
}

std::optional<report::Holder> holder_of(const pg::KeyName& name) {
    if (RecoveryInProgress()) return std::nullopt;
    return pg::KeyLock(name.digest).holder();
}

pg::Found look(const pg::KeyName& name) {
    const pg::Records records = pg::Records::to_read();
    const pg::Found found = pg::probe(records, name);
    records.close();
    return found;
}

}  // namespace

LookupRow look_up(const pg::KeyName& name, const pg::Scope& scope) {
    const pg::Claim* mine = pg::find_claim(name.digest);
    const bool open_here = mine != nullptr && mine->phase == pg::Phase::open;
    if (open_here && mine->token.kind == core::TokenKind::atomic)
        return held_row(static_cast<std::int32_t>(mine->token.attempt), MyProcPid, mine->created);

    pg::Found found = look(name);
    if (has_ended(found, scope)) return finished_row(found.record, scope);
    const auto holder = holder_of(name);
    // A holder may have committed between the first look and the look for a holder.
    if (!holder && !binds(found)) found = look(name);
    if (has_ended(found, scope)) return finished_row(found.record, scope);
    std::optional<int> pid;
    if (open_here)
        pid = MyProcPid;
    else if (holder)
        pid = holder->pid;
    if (binds(found)) return leased_row(found.record, pid);
    if (holder) return held_row(core::first_attempt, pid, holder->since);
    if (found.presence == Presence::inserting && !RecoveryInProgress())
        return held_row(core::first_attempt, std::nullopt, std::nullopt);
    return absent_row();
}

}  // namespace idem::api

IDEM_FUNCTION(idem_lookup) {
    using namespace idem;
    api::require_leader("idem.lookup()");
    const auto key = api::checked_key(pg::text_arg(fcinfo, api::arg_key));
    const auto tenant = api::checked_tenant(pg::text_arg(fcinfo, api::arg_tenant));
    const pg::Scope& scope = pg::usable_scope(pg::text_arg(fcinfo, api::arg_scope), "lookup");
    auto result = api::look_up(api::key_name(scope, tenant, key), scope);
    return result.as_result_of(fcinfo);
}
