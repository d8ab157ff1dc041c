// What the views of sql/views.sql cannot know from tables: the counters and histograms of a scope,
// the keys that transactions hold, and whether idem is preloaded; and idem.stats_reset().
//
// Counters are numbers, never a key or a tenant, so roles that monitor the server may read them.
// Keys are shown only to roles that may use their scope.
#include "api/arguments.hpp"
#include "pg/server/guc.hpp"
#include "pg/server/owner.hpp"
#include "pg/shared/held_claims.hpp"
#include "pg/shared/rate_limiter.hpp"
#include "pg/shared/stats.hpp"
#include "pg/store/scope.hpp"
#include "pg/store/table.hpp"

extern "C" {
#include "executor/spi.h"
}

namespace idem::api {
namespace {

enum CountersColumn {
    counters_since,
    counters_numbers,
    counters_tenants,
    counters_room,
    counters_columns
};

enum HeldColumn {
    held_scope,
    held_tenant,
    held_key,
    held_attempt,
    held_since,
    held_pid,
    held_transaction,
    held_state,
    held_keys,
    held_columns
};

constexpr int figures_scope = 0;
constexpr int figures_columns = 20;

// Unless the scope was dropped, or the caller may not use it.
void show_claim(const pg::HeldClaim& claim, void* fcinfo) {
    const pg::Scope* scope = pg::find_scope_by_id(claim.scope_id);
    if (scope == nullptr || !has_privs_of_role(GetUserId(), scope->owner)) return;
    pg::Row<held_columns> row;
    row.set_text(held_scope, scope->name);
    row.set_text(held_tenant, claim.tenant);
    row.set_text(held_key, claim.key);
    row.set_int(held_attempt, claim.attempt);
    row.set_time(held_since, claim.since);
    if (claim.as == pg::HeldAs::prepared) {
        row.set(held_transaction, TransactionIdGetDatum(claim.transaction));
        row.set_text(held_state, "prepared");
    } else {
        row.set_int(held_pid, claim.pid);
        row.set_text(held_state, claim.as == pg::HeldAs::open ? "open" : "uncommitted");
        row.set_int(held_keys, claim.keys);
    }
    row.add_to_result_of(static_cast<FunctionCallInfo>(fcinfo));
}

// Those of dropped scopes, under a NULL, are for roles that monitor the server.
bool may_see_figures(NullableDatum id) {
    const pg::Scope* scope = id.isnull ? nullptr : pg::find_scope_by_id(DatumGetInt32(id.value));
    return pg::may_observe(scope == nullptr ? InvalidOid : scope->owner);
}

void show_unknown_figures(ArrayType* ids, FunctionCallInfo fcinfo) {
    const pg::Elements elements = pg::elements_of(ids);
    for (std::size_t i = 0; i < elements.values.size(); ++i) {
        const NullableDatum id = {elements.values[i], elements.nulls[i]};
        if (!may_see_figures(id)) continue;
        pg::Row<figures_columns> row;
        row.set(figures_scope, id);
        row.add_to_result_of(fcinfo);
    }
}

}  // namespace

// No row unless the scope is counted and the caller may observe it.
IDEM_FUNCTION(idem_scope_counters) {
    InitMaterializedSRF(fcinfo, 0);
    const pg::Scope* scope = pg::find_scope_by_id(PG_GETARG_INT32(0));
    if (scope == nullptr || !pg::may_observe(scope->owner)) return Datum{0};
    const auto stats = pg::read_stats(scope->id);
    if (!stats) return Datum{0};
    pg::Row<counters_columns> row;
    row.set_time(counters_since, stats->since);
    row.set_pointer(counters_numbers, stats->numbers);
    const pg::Room room = pg::room_of(scope->id);
    row.set_int(counters_tenants, room.taken);
    row.set_int(counters_room, room.left);
    row.add_to_result_of(fcinfo);
    return Datum{0};
}

// The counters are not transactional, and neither is their reset.
IDEM_FUNCTION(idem_stats_reset) {
    require_writable("stats_reset");
    std::optional<std::int32_t> scope_id;
    if (const auto name = pg::text_arg(fcinfo, 0)) {
        const pg::Scope* scope = pg::find_scope(*name);
        if (scope == nullptr)
            report::unknown_scope(*name, pg::nearest_scope(*name), nullptr, report::Creatable::no);
        scope_id = scope->id;
    }
    pg::reset_stats(scope_id);
    PG_RETURN_VOID();
}

IDEM_FUNCTION(idem_preloaded) {
    PG_RETURN_BOOL(pg::guc::preloaded);
}

// With the argument, those of prepared transactions as well, for which it reads all records.
IDEM_FUNCTION(idem_held_keys) {
    InitMaterializedSRF(fcinfo, 0);
    pg::show_running_claims(show_claim, fcinfo);
    if (pg::value_arg<bool>(fcinfo, 0).value_or(false))
        pg::show_prepared_claims(show_claim, fcinfo);
    return Datum{0};
}

// The totals are computed as the owner of idem.record, and filtered for the caller. Where they
// cannot be, each scope still has its row, so that the views show its settings.
IDEM_FUNCTION(idem_figures) {
    InitMaterializedSRF(fcinfo, 0);
    auto* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
    std::array<Oid, 3> types = {INT4ARRAYOID, get_array_type(INTERVALOID), INT4ARRAYOID};
    std::array<Datum, 3> values;
    std::array<char, 4> nulls{};
    for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = fcinfo->args[i].value;
        nulls[i] = fcinfo->args[i].isnull ? 'n' : ' ';
    }
    Relation records = pg::open_table(pg::Table::record, AccessShareLock);
    // Where the owner is a superuser, only built-in functions may run.
    if (OidIsValid(pg::keeps_from_rewriting(records))) {
        table_close(records, AccessShareLock);
        if (!PG_ARGISNULL(0)) show_unknown_figures(PG_GETARG_ARRAYTYPE_P(0), fcinfo);
        return Datum{0};
    }
    if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
    pg::AsOwner owner(records);
    const int code = SPI_execute_with_args("SELECT * FROM idem_internal.totals($1, $2, $3)", 3,
                                           types.data(), values.data(), nulls.data(), true, 0);
    if (code != SPI_OK_SELECT) elog(ERROR, "idem_internal.totals() returned code %d", code);
    owner.end();
    for (std::uint64_t i = 0; i < SPI_processed; ++i) {
        bool dropped;
        HeapTuple row = SPI_tuptable->vals[i];
        const Datum id = SPI_getbinval(row, SPI_tuptable->tupdesc, 1, &dropped);
        if (may_see_figures({id, dropped})) tuplestore_puttuple(result->setResult, row);
    }
    SPI_finish();
    table_close(records, NoLock);
    return Datum{0};
}

}  // namespace idem::api
