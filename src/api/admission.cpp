// idem_internal.key_weakness() shows what the scope setting weak_keys would find in a key.
#include "api/admission.hpp"

#include "api/arguments.hpp"
#include "pg/open_claims.hpp"
#include "pg/server/guc.hpp"
#include "pg/shared/stats.hpp"

namespace idem::api {
namespace {

void check_strength(const pg::Scope& scope, std::string_view key) {
    if (scope.weak_keys == pg::WeakKeys::allow) return;
    const std::string_view weakness = core::weakness(key);
    if (weakness.empty()) return;
    pg::count(scope.id, pg::Counter::weak);
    const bool rejects = scope.weak_keys == pg::WeakKeys::reject;
    ereport(rejects ? ERROR : WARNING,
            (rejects ? report::own_error("invalid_key") : errcode(ERRCODE_WARNING),
             errmsg("idempotency key \"%s\" is %s", report::c_string(key),
                    rejects ? "too weak" : "weak"),
             errdetail("Its weakness is \"%s\": such a key is likely to be used for more than one "
                       "operation. The \"weak_keys\" setting of scope \"%s\" is \"%s\".",
                       report::c_string(weakness), scope.name, rejects ? "reject" : "warn"),
             errhint("Send a UUID or another long random string, or a string that names the "
                     "operation, such as \"order-4711\".")));
}

void warn_of_missing_limit(const pg::Scope& scope) {
    static constinit bool warned = false;
    if (std::exchange(warned, true)) return;
    ereport(WARNING,
            (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
             errmsg("claims in scope \"%s\" are not limited", scope.name),
             errdetail("The scope sets \"claims_per_minute\". What it limits is counted in shared "
                       "memory, and idem is not preloaded."),
             errhint("Add idem to shared_preload_libraries and restart the server.")));
}

}  // namespace

void check_open_claims(std::int32_t scope_id) {
    if (pg::claims_held() < pg::guc::max_open_claims) return;
    pg::count(scope_id, pg::Counter::limited);
    const int limit = pg::guc::max_open_claims;
    ereport(ERROR,
            (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED), errmsg("too many claims in one transaction"),
             errdetail_plural("This transaction holds %d key lock, the most that "
                              "\"idem.max_open_claims\" allows.",
                              "This transaction holds %d key locks, the most that "
                              "\"idem.max_open_claims\" allows.",
                              static_cast<unsigned long>(limit), limit),
             errhint("Commit in smaller batches. The limit protects the lock table, which "
                     "the whole server shares.")));
}

std::int64_t least_ttl(const pg::Scope& scope) {
    return scope.min_ttl.value_or(scope.reject_stale_keys ? scope.ttl : 0);
}

bool is_stale_key(const pg::Scope& scope, std::string_view key, TimestampTz now) {
    if (!scope.reject_stale_keys) return false;
    const bool stale = core::is_stale(key, now + pg::postgres_epoch, least_ttl(scope));
    if (stale) pg::count(scope.id, pg::Counter::stale);
    return stale;
}

// A server without shared memory of idem's, such as one that has restored a dump, admits the claim
// and warns once per session: refusing every claim would do more harm.
pg::Charge charge_new_key(const pg::Scope& scope, std::string_view tenant, std::string_view key,
                          TimestampTz now) {
    check_strength(scope, key);
    if (!scope.claims_per_minute) return {};
    if (!pg::guc::preloaded) {
        warn_of_missing_limit(scope);
        return {};
    }
    const pg::Charge charge = pg::charge_bucket(scope.id, tenant, *scope.claims_per_minute, now);
    if (charge.is_refused()) pg::count(scope.id, pg::Counter::limited);
    return charge;
}

void refuse_limited(const pg::Scope& scope, const pg::Charge& charge) {
    const double seconds = report::seconds_of(charge.wait);
    if (charge.has_room)
        ereport(ERROR, (report::own_error("limit_exceeded"), report::errretry(charge.wait),
                        errmsg("too many new claims in scope \"%s\"", scope.name),
                        errdetail("The scope allows %d new claims per minute per tenant.",
                                  *scope.claims_per_minute),
                        errhint("Retry with the same key after %.1f seconds. Retries of finished "
                                "operations are still answered.",
                                seconds)));
    ereport(ERROR,
            (report::own_error("limit_exceeded"), report::errretry(charge.wait),
             errmsg("too many tenants in scope \"%s\"", scope.name),
             errdetail("The claims of each tenant are counted for \"claims_per_minute\", and the "
                       "scope has its share of the places for that. Other tenants are not "
                       "affected."),
             errhint("Retry with the same key after %.1f seconds. An administrator can raise "
                     "\"idem.limited_tenants\"; idem.stats shows how many tenants are counted.",
                     seconds)));
}

void check_new_key(const pg::Scope& scope, std::string_view tenant, std::string_view key,
                   TimestampTz now) {
    require_tenant(scope, tenant);
    if (is_stale_key(scope, key, now)) refuse_stale_key(key);
    const pg::Charge charge = charge_new_key(scope, tenant, key, now);
    if (charge.is_refused()) refuse_limited(scope, charge);
}

void refuse_stale_key(std::string_view key) {
    const auto milliseconds = static_cast<std::int64_t>(core::embedded_time(key).value_or(0));
    const TimestampTz made = milliseconds * 1000 - pg::postgres_epoch;
    if (made > GetCurrentTimestamp())
        ereport(ERROR, (report::own_error("stale_key"),
                        errmsg("idempotency key \"%s\" has a timestamp in the future",
                               report::c_string(key)),
                        errdetail("The timestamp, %s, is more than 10 minutes in the future.",
                                  timestamptz_to_str(made)),
                        errhint("Check the client's clock, and send a new key.")));
    ereport(ERROR,
            (report::own_error("stale_key"),
             errmsg("idempotency key \"%s\" is stale", report::c_string(key)),
             errdetail("The key's timestamp, %s, is longer ago than the scope remembers keys. "
                       "The operation may have completed, and its record may have expired.",
                       timestamptz_to_str(made)),
             errhint("Find out whether the operation was carried out. If it was not, send a "
                     "new key.")));
}

IDEM_FUNCTION(idem_key_weakness) {
    const auto key = pg::text_arg(fcinfo, 0);
    if (!key) report::missing_argument("key");
    const std::string_view weakness = core::weakness(*key);
    if (weakness.empty()) PG_RETURN_NULL();
    PG_RETURN_TEXT_P(pg::text_of(weakness));
}

}  // namespace idem::api
