#include "api/limits.hpp"

#include "pg/limiter.hpp"

namespace idem::api {
namespace {

constexpr const char* preload_hint = "Add idem to shared_preload_libraries and restart the server.";

constinit bool warned = false;

void warn_once(const pg::Scope& scope) {
    if (warned) return;
    warned = true;
    ereport(WARNING, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                      errmsg("claims in scope \"%s\" are not limited", scope.name),
                      errdetail("The scope has \"claims_per_minute\", which is counted in shared "
                                "memory, and idem is not preloaded."),
                      errhint("%s", preload_hint)));
}

}  // namespace

void require_limits_available() {
    if (pg::limits_available()) return;
    ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                    errmsg("\"claims_per_minute\" needs idem to be preloaded"),
                    errdetail("Claims are counted in shared memory, which a library gets only "
                              "when the server starts."),
                    errhint("%s", preload_hint)));
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
