// idem.lookup(): what is known of a key, without claiming it.
//
// Reads the newest committed truth, not the transaction's snapshot, and the key lock's holder; it
// takes no key lock, writes nothing and works on a standby, where claims in flight on the primary
// cannot be seen.
#include "api/arguments.hpp"
#include "pg/key_lock.hpp"
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
    columns
};
using Result = pg::Row<columns>;

constexpr std::int32_t first_attempt = 1;

Result absent() {
    if (RecoveryInProgress())
        ereport(NOTICE, (errmsg("key is not known on this standby"),
                         errdetail("A standby may lag, and does not see claims in flight."),
                         errhint("Ask the primary before executing the operation.")));
    Result result;
    result.set_text(column_state, "absent");
    return result;
}

Result in_progress(std::optional<int> pid, std::optional<TimestampTz> since) {
    Result result;
    result.set_text(column_state, "in_progress");
    result.set_int(column_attempt, first_attempt);
    result.set_int(column_holder_pid, pid);
    result.set_time(column_since, since);
    return result;
}

Result finished(const pg::Record& record) {
    Result result;
    result.set_text(column_state, record.state == core::State::failed ? "failed" : "completed");
    result.set_int(column_attempt, record.attempt);
    result.set_int(column_status, record.status);
    result.set_pointer(column_headers, record.headers);
    result.set_pointer(column_response, record.response);
    result.set_pointer(column_body, record.body);
    result.set_pointer(column_error, record.error);
    result.set_time(column_created_at, record.created);
    result.set_time(column_expires_at, record.expires);
    result.set_time(column_since, record.created);
    return result;
}

// A finished record that binds the key now: committed or this transaction's, and not expired.
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

Result run(const pg::KeyName& name) {
    const pg::Claim* mine = pg::find_claim(name.digest);
    if (mine != nullptr && mine->phase == pg::Phase::open)
        return in_progress(MyProcPid, mine->created);

    const pg::Records records = pg::Records::to_read();
    const pg::Found found = pg::probe(records, name);
    records.close();
    if (binds(found)) return finished(found.record);
    if (RecoveryInProgress()) return absent();

    const auto holder = pg::KeyLock(name.digest).holder();
    if (holder) return in_progress(holder->pid, holder->since);
    if (found.presence == Presence::inserting) return in_progress(std::nullopt, std::nullopt);
    return absent();
}

}  // namespace
}  // namespace idem::api

IDEM_FUNCTION(idem_lookup) {
    using namespace idem;
    PreventCommandIfParallelMode("idem.lookup()");
    const auto key = api::checked_key(pg::text_arg(fcinfo, api::arg_key));
    const auto tenant = api::checked_tenant(pg::text_arg(fcinfo, api::arg_tenant));
    const pg::Scope& scope = pg::usable_scope(pg::text_arg(fcinfo, api::arg_scope), "lookup");
    auto result = api::run(api::key_name(scope, tenant, key));
    return result.as_result_of(fcinfo);
}
