// idem.open_claims() and idem.prepared_claims(): which transactions hold keys, and which keys, of
// the scopes that the caller may use. The view idem.in_flight shows them beside the leased claims,
// which have rows of their own.
#include "api/arguments.hpp"
#include "pg/census.hpp"
#include "pg/scope.hpp"

namespace idem::api {
namespace {

// In the order of the columns of both functions; those from pid on are open_claims' own.
enum Column {
    column_scope,
    column_tenant,
    column_key,
    column_attempt,
    column_since,
    column_pid,
    column_state,
    column_keys,
    columns
};
constexpr int columns_up_to_0_2 = column_pid + 1;
constexpr int column_transaction = column_pid;  // of prepared_claims()
constexpr int columns_of_prepared = column_transaction + 1;

// NULL when the scope was dropped, or is none of the caller's.
const pg::Scope* visible_scope(std::int32_t id) {
    const pg::Scope* scope = pg::find_scope_by_id(id);
    return scope != nullptr && has_privs_of_role(GetUserId(), scope->owner) ? scope : nullptr;
}

template <int Columns>
void set_claim(pg::Row<Columns>& row, const pg::Scope& scope, std::string_view tenant,
               std::string_view key, std::int32_t attempt, TimestampTz since) {
    row.set_text(column_scope, scope.name);
    row.set_text(column_tenant, tenant);
    row.set_text(column_key, key);
    row.set_int(column_attempt, attempt);
    row.set_time(column_since, since);
}

template <int Columns>
void show(FunctionCallInfo fcinfo, const pg::HeldClaim& claim, int pid) {
    const pg::Scope* scope = visible_scope(claim.scope_id);
    if (scope == nullptr) return;
    const bool open = claim.as == pg::HeldAs::open;
    pg::Row<Columns> row;
    set_claim(row, *scope, claim.tenant(), claim.key(), claim.attempt, claim.since);
    row.set_int(column_pid, pid);
    if constexpr (Columns == columns) {
        row.set_text(column_state, open ? "open" : "uncommitted");
        row.set_int(column_keys, claim.keys);
    } else if (!open) {
        return;
    }
    row.add_to_result_of(fcinfo);
}

template <int Columns>
void show_claims(FunctionCallInfo fcinfo) {
    InitMaterializedSRF(fcinfo, 0);
    for (int backend = 0; backend < pg::backends_in_census(); ++backend) {
        pg::HeldClaim claim;
        const int pid = pg::read_held_claim(backend, claim);
        if (pid != 0) show<Columns>(fcinfo, claim, pid);
    }
}

void show_prepared(const pg::PreparedClaim& claim, void* data) {
    const pg::Scope* scope = visible_scope(claim.scope_id);
    if (scope == nullptr) return;
    pg::Row<columns_of_prepared> row;
    set_claim(row, *scope, claim.tenant, claim.key, claim.attempt, claim.created);
    row.set(column_transaction, TransactionIdGetDatum(claim.transaction));
    row.add_to_result_of(static_cast<FunctionCallInfo>(data));
}

}  // namespace
}  // namespace idem::api

IDEM_FUNCTION(idem_open_claims_0_3) {
    idem::api::show_claims<idem::api::columns>(fcinfo);
    return Datum{0};
}

// As the scripts up to 0.2.0 declare it: without state and keys, and open claims only.
IDEM_FUNCTION(idem_open_claims) {
    idem::api::show_claims<idem::api::columns_up_to_0_2>(fcinfo);
    return Datum{0};
}

IDEM_FUNCTION(idem_prepared_claims) {
    using namespace idem;
    InitMaterializedSRF(fcinfo, 0);
    pg::visit_prepared_claims(api::show_prepared, fcinfo);
    return Datum{0};
}
