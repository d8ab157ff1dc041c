#include "api/limits.hpp"

#include "pg/limiter.hpp"
#include "pg/report.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;

constinit bool warned = false;

void warn_once(const pg::Scope& scope) {
    if (warned) return;
    warned = true;
    report::warn_of_missing_limit(scope.name);
}

}  // namespace

void require_limits_available() {
    if (!pg::limits_available()) report::limits_unavailable();
}

std::int64_t charge_claim(const pg::Scope& scope, std::string_view tenant, TimestampTz now) {
    if (!scope.claims_per_minute) return 0;
    if (!pg::limits_available()) {
        warn_once(scope);
        return 0;
    }
    const pg::Admission admission = pg::admit(scope.id, tenant, *scope.claims_per_minute, now);
    return admission.admitted ? 0 : admission.retry_after;
}

}  // namespace idem::api
