// idem.cancel(): an operation that never ran never will. Stores a final failure under a key that
// has no record; a late claim of the key receives that failure, whatever its request.
//
// cancel() is a claim that fails in the same call: it waits for a claim in flight within the
// scope's wait, is bound by the scope's rules for new keys, and keeps the key lock until the
// transaction ends. A key that has a record is told about, as by idem.lookup(), and is not waited
// for.
#include "api/admission.hpp"
#include "api/arguments.hpp"
#include "api/claim.hpp"
#include "api/finish.hpp"
#include "api/locked_key.hpp"
#include "api/lookup.hpp"
#include "pg/server/failure.hpp"
#include "pg/store/key_lock.hpp"
#include "pg/store/token.hpp"

namespace idem::api {
namespace {

// Raised as ID003, because it has no sqlstate.
constexpr const char* default_error = R"({"message": "operation was cancelled before it ran"})";

Jsonb* read_error(FunctionCallInfo fcinfo) {
    Jsonb* error = pg::jsonb_arg(fcinfo, 3);
    if (error == nullptr)
        return DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(default_error)));
    pg::check_failure(error, pg::FailureUse::answer);
    return error;
}

void store_failure(const pg::Key& key, const pg::Scope& scope, const pg::Found& found,
                   Jsonb* error) {
    const TimestampTz now = GetCurrentTimestamp();
    check_new_key(scope, key.tenant, key.key, now);
    check_open_claims(scope.id);
    pg::Claim claim(key, scope.name,
                    {core::TokenKind::atomic, key.digest, core::first_attempt, pg::random_bits()});
    claim.replaces = found.presence != core::Presence::absent;
    claim.fingerprint = pg::fingerprint_of_any();
    claim.created = now;
    claim.ttl = scope.ttl;
    count_claim(scope, key, found, core::Verdict::claim);
    (void)finish_atomic(pg::remember_claim(claim),
                        {.state = core::State::failed, .error = error, .timed = false});
}

}  // namespace

IDEM_FUNCTION(idem_cancel) {
    require_writable("cancel", read_by_lookup);
    Jsonb* error = read_error(fcinfo);
    const KeyCall call = read_key(fcinfo, 2, "cancel");
    // A copy: storing the failure looks the scope up again.
    const pg::Scope scope = *call.scope;
    refuse_open_here(call.key, "cancel");
    pg::KeyLock lock(call.key.digest);
    pg::WaitBound bound(scope.wait);
    const pg::Found found = find_at_rest(call.key, lock, bound);
    if (is_live(found))
        lock.release();
    else
        store_failure(call.key, scope, found, error);
    return look_up(call.key, scope, 0).as_result_of(fcinfo);
}

}  // namespace idem::api
