// idem_internal.key_weakness() shows what the scope setting weak_keys would find in a key.
#include "api/admission.hpp"

#include "api/arguments.hpp"
#include "core/key.hpp"
#include "core/weakness.hpp"
#include "pg/boundary.hpp"
#include "pg/guc.hpp"
#include "pg/limiter.hpp"
#include "pg/open_claims.hpp"
#include "pg/report.hpp"
#include "pg/stats.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;

constinit bool warned_of_rate = false;

}  // namespace

void check_open_claims(std::int32_t scope_id) {
    if (pg::claims_held() < pg::guc::max_open_claims) return;
    pg::count(scope_id, pg::Counter::limited);
    report::too_many_open_claims(pg::guc::max_open_claims);
}

std::int64_t charge_claim(const pg::Scope& scope, std::string_view tenant, TimestampTz now) {
    if (!scope.claims_per_minute) return 0;
    if (!pg::limits_available()) {
        if (!std::exchange(warned_of_rate, true))
            report::warn_of_missing_limit(scope.name, "claims_per_minute");
        return 0;
    }
    const pg::Admission admission = pg::admit(scope.id, tenant, *scope.claims_per_minute, now);
    return admission.admitted ? 0 : admission.retry_after;
}

bool is_stale_key(const pg::Scope& scope, std::string_view key, TimestampTz now, std::int64_t ttl) {
    if (!scope.reject_stale_keys) return false;
    const core::KeyAge age = core::key_age(key, now + pg::postgres_epoch, ttl);
    return age == core::KeyAge::stale || age == core::KeyAge::from_future;
}

void refuse_stale_key(std::string_view key) {
    const auto milliseconds = static_cast<std::int64_t>(core::embedded_time(key).value_or(0));
    const TimestampTz made = milliseconds * 1000 - pg::postgres_epoch;
    report::stale_key(key, made, made > GetCurrentTimestamp());
}

void check_strength(const pg::Scope& scope, std::string_view key) {
    if (scope.weak_keys == pg::WeakKeys::allow) return;
    const core::Weakness weakness = core::weakness(key);
    if (weakness == core::Weakness::none) return;
    pg::count(scope.id, pg::Counter::weak);
    const std::string_view name = core::weakness_name(weakness);
    if (scope.weak_keys == pg::WeakKeys::reject) report::weak_key(key, scope.name, name);
    report::warn_of_weak_key(key, scope.name, name);
}

void check_new_key(const pg::Scope& scope, std::string_view tenant, std::string_view key,
                   TimestampTz now) {
    require_tenant(scope, tenant);
    if (is_stale_key(scope, key, now, scope.ttl)) {
        pg::count(scope.id, pg::Counter::stale);
        refuse_stale_key(key);
    }
    check_strength(scope, key);
    const std::int64_t wait = charge_claim(scope, tenant, now);
    if (wait <= 0) return;
    pg::count(scope.id, pg::Counter::limited);
    report::too_many_claims_per_minute(scope.name, *scope.claims_per_minute, wait);
}

}  // namespace idem::api

IDEM_FUNCTION(idem_key_weakness) {
    using namespace idem;
    const auto key = pg::text_arg(fcinfo, 0);
    if (!key) pg::report::missing_argument("key");
    const core::Weakness weakness = core::weakness(*key);
    if (weakness == core::Weakness::none) PG_RETURN_NULL();
    PG_RETURN_TEXT_P(pg::text_of(core::weakness_name(weakness)));
}
