// idem.claim() and idem.try_claim(): own the operation, or get its stored answer.
//
// Nothing is written here. The key lock is taken without waiting, the index is probed once, and the
// core's table says what that means. Locking: the key lock, kept when claimed, freed in the same
// call otherwise; the record table after it.
#include "api/arguments.hpp"
#include "core/duration.hpp"
#include "pg/duration.hpp"
#include "pg/entropy.hpp"
#include "pg/guc.hpp"
#include "pg/key_lock.hpp"
#include "pg/open_claims.hpp"
#include "pg/request.hpp"
#include "pg/report.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;
using core::Verdict;

enum Argument { arg_scope, arg_key, arg_request, arg_tenant, arg_ttl, arg_lease, arg_wait };

enum Column {
    column_claimed,
    column_outcome,
    column_token,
    column_attempt,
    column_response,
    column_status,
    column_headers,
    column_body,
    column_error,
    column_retry_after,
    column_recovery_point,
    column_recovery_state,
    column_created_at,
    column_expires_at,
    columns
};
using Result = pg::Row<columns>;

// Whether an outcome that is not an answer raises, or comes back as data.
enum class Style { raise, report };

struct Call {
    Style style;
    const pg::Scope* scope;
    pg::KeyName name;
    Jsonb* request;
    std::int64_t ttl;
    std::int64_t wait;
};

constexpr std::int32_t first_attempt = 1;

void refuse_lease(FunctionCallInfo fcinfo) {
    if (PG_ARGISNULL(arg_lease)) return;
    ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                    errmsg("leased claims are not supported by this version of idem"),
                    errdetail("A claim of this version ends with its transaction."),
                    errhint("Leave the argument \"lease\" out.")));
}

std::int64_t wait_of(FunctionCallInfo fcinfo, Style style) {
    const Interval* wait = pg::interval_arg(fcinfo, arg_wait);
    if (wait != nullptr) return pg::nonnegative_duration("wait", *wait);
    return style == Style::report ? 0 : -1;  // -1: the scope's
}

// In the order that the reference promises: shape, scope, permission, the scope's rules.
Call read_call(FunctionCallInfo fcinfo, Style style, const char* function) {
    const std::string_view key = checked_key(pg::text_arg(fcinfo, arg_key));
    const std::string_view tenant = checked_tenant(pg::text_arg(fcinfo, arg_tenant));
    const Interval* ttl_argument = pg::interval_arg(fcinfo, arg_ttl);
    const std::int64_t ttl =
        ttl_argument == nullptr ? 0 : pg::positive_duration("ttl", *ttl_argument);
    const std::int64_t wait = wait_of(fcinfo, style);
    refuse_lease(fcinfo);

    const pg::Scope& scope = pg::usable_scope(pg::text_arg(fcinfo, arg_scope), function);
    const pg::KeyName name = key_name(scope, tenant, key);
    Jsonb* request = pg::jsonb_arg(fcinfo, arg_request);
    if (scope.request_required && request == nullptr) report::missing_argument("request");
    return {style,
            &scope,
            name,
            request,
            ttl_argument == nullptr ? scope.ttl : ttl,
            wait < 0 ? scope.wait : wait};
}

Result outcome(std::string_view text) {
    Result result;
    result.set(column_claimed, BoolGetDatum(false));
    result.set_text(column_outcome, text);
    return result;
}

Result answer(std::string_view text, const pg::Record& record) {
    Result result = outcome(text);
    result.set_int(column_attempt, record.attempt);
    result.set_int(column_status, record.status);
    result.set_pointer(column_headers, record.headers);
    result.set_pointer(column_response, record.response);
    result.set_pointer(column_body, record.body);
    result.set_pointer(column_error, record.error);
    result.set_time(column_created_at, record.created);
    result.set_time(column_expires_at, record.expires);
    return result;
}

Result conflict(const Call& call) {
    if (call.style == Style::raise) report::key_conflict(call.name.key);
    return outcome("conflict");
}

Result failed(const Call& call, const pg::Record& record) {
    if (call.style == Style::raise) report::stored_failure(call.name.key, record.error);
    return answer("failed", record);
}

Result in_progress(const Call& call, const std::optional<report::Holder>& seen) {
    const report::Holder holder = seen.value_or(report::Holder{});
    const TimestampTz now = GetCurrentTimestamp();
    const std::int64_t retry_after = core::retry_after(now - holder.since.value_or(now));
    if (call.style == Style::raise) report::in_progress(call.name.key, holder, retry_after);
    Result result = outcome("in_progress");
    result.set_pointer(column_retry_after, pg::interval_of(retry_after));
    return result;
}

Result open_here(const Call& call) {
    if (call.style == Style::raise) report::claimed_by_this_transaction(call.name.key);
    return outcome("in_progress");
}

Result limited(const Call& call) {
    if (call.style == Style::raise) report::too_many_open_claims(pg::guc::max_open_claims);
    return outcome("limited");
}

struct Look {
    Verdict verdict;
    pg::Found found;
    TimestampTz now;
};

Result claimed(const Call& call, const Look& seen) {
    pg::Claim claim{};
    claim.token = {call.name.digest, first_attempt, pg::random_bits()};
    claim.replaces_expired = seen.found.presence != core::Presence::absent;
    claim.scope_id = call.scope->id;
    claim.scope_name = call.scope->name;
    claim.tenant = call.name.tenant;
    claim.key = call.name.key;
    claim.fingerprint = pg::new_fingerprint(call.request, *call.scope);
    claim.created = seen.now;
    claim.ttl = call.ttl;
    pg::remember_claim(claim);

    const core::TokenText token = core::encode(claim.token);
    Result result = outcome("claimed");
    result.set(column_claimed, BoolGetDatum(true));
    result.set_text(column_token, {token.data(), token.size()});
    result.set_int(column_attempt, first_attempt);
    result.set_time(column_created_at, seen.now);
    return result;
}

Verdict judge(const Call& call, const pg::Found& found, TimestampTz now) {
    const bool comparable =
        found.presence != core::Presence::absent && found.presence != core::Presence::inserting;
    return core::decide(
        {
            .presence = found.presence,
            .in_snapshot = found.in_snapshot,
            .same_request =
                comparable && pg::same_request(call.request, found.record.fingerprint, *call.scope),
            .state = found.record.state,
            .expires = found.record.expires,
        },
        now);
}

// Read the clock after the probe, the probe after the lock: so no decision is older than the lock.
Look look(const Call& call, bool locked) {
    const pg::Records records = locked ? pg::Records::to_write() : pg::Records::to_read();
    const pg::Found found = pg::probe(records, call.name);
    records.close();
    const TimestampTz now = GetCurrentTimestamp();
    return {judge(call, found, now), found, now};
}

Result answer_of(const Call& call, const Look& seen) {
    switch (seen.verdict) {
        case Verdict::replay:
            return answer("completed", seen.found.record);
        case Verdict::failed:
            return failed(call, seen.found.record);
        case Verdict::conflict:
            return conflict(call);
        default:
            report::serialization_failure(
                "The key was completed by a transaction that this one's snapshot cannot see.");
    }
}

// Lock, look, decide; while another transaction is at the key, wait within the bound and look
// again. What is finished is answered with or without the lock: replays never queue.
Result run(const Call& call) {
    const pg::Claim* mine = pg::find_claim(call.name.digest);
    if (mine != nullptr && mine->phase == pg::Phase::open) return open_here(call);

    const TimestampTz deadline = GetCurrentTimestamp() + call.wait;
    pg::KeyLock lock(call.name.digest);
    bool locked = lock.try_acquire();
    for (;;) {
        const Look seen = look(call, locked);
        const bool unbound = seen.verdict == Verdict::claim;
        if (!unbound && seen.verdict != Verdict::in_flight) {
            if (locked) lock.release();
            return answer_of(call, seen);
        }
        if (unbound && locked) {
            if (pg::claims_held() < pg::guc::max_open_claims) return claimed(call, seen);
            lock.release();
            return limited(call);
        }
        // Without the lock its holder is at the key; with it, a writer that went past the lock.
        const bool waited = locked ? pg::wait_for_transaction(seen.found.working, deadline)
                                   : lock.acquire_by(deadline);
        if (!waited) {
            const auto holder = lock.holder();
            if (locked) lock.release();
            return in_progress(call, holder);
        }
        locked = true;
    }
}

Datum claim(FunctionCallInfo fcinfo, Style style, const char* function, const char* call_name) {
    require_writable(call_name);
    Result result = run(read_call(fcinfo, style, function));
    return result.as_result_of(fcinfo);
}

}  // namespace
}  // namespace idem::api

IDEM_FUNCTION(idem_claim) {
    return idem::api::claim(fcinfo, idem::api::Style::raise, "claim", "idem.claim()");
}

IDEM_FUNCTION(idem_try_claim) {
    return idem::api::claim(fcinfo, idem::api::Style::report, "try_claim", "idem.try_claim()");
}
