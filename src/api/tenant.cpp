#include "api/tenant.hpp"

#include "api/arguments.hpp"
#include "pg/owner.hpp"
#include "pg/report.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;

enum Argument { arg_scope, arg_tenant, arg_force };

// The tenant in all scopes. Without a name, it would be every key that has no tenant.
TenantCall everywhere(std::string_view tenant, bool force, const char* function) {
    if (!superuser())
        report::superuser_only(psprintf("idem.%s() for all scopes", function),
                               "It changes the records of every role.");
    if (tenant.empty())
        report::invalid_argument("tenant", "For all scopes, the tenant must not be empty.",
                                 "Erase the keys without a tenant in each scope.");
    return {nullptr, tenant, force};
}

// Why the table's records are not reached, if they are not.
std::optional<pg::RecordTableFault> obstacle(Oid table, Rows rows) {
    const auto fault = pg::fault_of_record_table(table);
    if (!fault || fault->detail != nullptr) return fault;
    if (rows == Rows::deleted) return std::nullopt;
    Relation relation = pg::try_open_records(table, AccessShareLock);
    if (relation == nullptr) return std::nullopt;
    const Oid caller = pg::keeps_from_rewriting(relation);
    relation_close(relation, AccessShareLock);
    if (!OidIsValid(caller)) return std::nullopt;
    return pg::RecordTableFault{
        psprintf("%s calls a function that is not built in, and the owner of the table is a "
                 "superuser.",
                 pg::qualified_name(caller)),
        "Drop the index, or take the table out of the partitioned table."};
}

// A session that moves records locks the table that they leave. Waits for such a move, and then
// keeps others from beginning. A table that has appeared meanwhile is locked, too.
List* lock_all() {
    List* locked = NIL;
    for (bool again = true; again;) {
        again = false;
        List* tables = pg::record_tables();
        for (int i = 0; i < list_length(tables); ++i) {
            const Oid table = list_nth_oid(tables, i);
            if (list_member_oid(locked, table)) continue;
            LockRelationOid(table, RowExclusiveLock);
            locked = lappend_oid(locked, table);
            again = true;
        }
        list_free(tables);
    }
    return locked;
}

}  // namespace

TenantCall read_tenant_call(FunctionCallInfo fcinfo, const char* function, Rows rows) {
    const auto tenant = pg::text_arg(fcinfo, arg_tenant);
    if (!tenant) report::missing_argument("tenant");
    const bool force = force_arg(fcinfo, arg_force);
    const auto scope_name = pg::text_arg(fcinfo, arg_scope);
    if (!scope_name && rows == Rows::rewritten)
        return everywhere(checked_tenant(tenant), force, function);
    const pg::Scope& scope = pg::usable_scope(scope_name, function);
    return {&scope, tenant_in(scope, checked_tenant(tenant)), force};
}

std::span<const pg::RecordPlace> places_of(const TenantCall& call, Rows rows) {
    const List* locked = lock_all();
    List* reached = NIL;
    for (int i = 0; i < list_length(locked); ++i) {
        const Oid table = list_nth_oid(locked, i);
        if (const auto fault = obstacle(table, rows))
            report::table_not_reached(pg::qualified_name(table), fault->detail, fault->remedy);
        else
            reached = lappend_oid(reached, table);
    }
    const auto scope = call.scope == nullptr ? std::nullopt : std::optional(call.scope->id);
    const auto places = pg::records_of_tenant(reached, scope, call.tenant);
    const bool all_reached = list_length(reached) == list_length(locked);
    if (places.empty() && all_reached) report::no_records_of_tenant(call.tenant);
    return places;
}

}  // namespace idem::api
