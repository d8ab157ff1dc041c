// idem.open_claims(): the atomic claims that are open now, in all backends, of the scopes that the
// caller may use. No rows unless the library is preloaded. The view idem.in_flight shows them
// beside the leased ones, which have rows of their own.
#include "api/arguments.hpp"
#include "pg/census.hpp"
#include "pg/scope.hpp"

namespace idem::api {
namespace {

enum Column {
    column_scope,
    column_tenant,
    column_key,
    column_attempt,
    column_since,
    column_pid,
    columns
};

void show(FunctionCallInfo fcinfo, const pg::OpenClaim& claim, int pid) {
    const pg::Scope* scope = pg::find_scope_by_id(claim.scope_id);
    if (scope == nullptr || !has_privs_of_role(GetUserId(), scope->owner)) return;
    pg::Row<columns> row;
    row.set_text(column_scope, scope->name);
    row.set_text(column_tenant, claim.tenant());
    row.set_text(column_key, claim.key());
    row.set_int(column_attempt, claim.attempt);
    row.set_time(column_since, claim.since);
    row.set_int(column_pid, pid);
    row.add_to_result_of(fcinfo);
}

}  // namespace
}  // namespace idem::api

IDEM_FUNCTION(idem_open_claims) {
    using namespace idem;
    InitMaterializedSRF(fcinfo, 0);
    for (int backend = 0; backend < pg::backends_in_census(); ++backend) {
        pg::OpenClaim claim;
        const int pid = pg::read_open_claim(backend, claim);
        if (pid != 0) api::show(fcinfo, claim, pid);
    }
    return Datum{0};
}
