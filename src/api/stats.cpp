// idem.scope_stats() and idem.stats_reset(): the counters of the scopes that the caller may
// observe.
//
// The rows are those of idem.scope, seen under a snapshot of their own. Empty where the library is
// not preloaded.
#include "api/arguments.hpp"
#include "pg/boundary.hpp"
#include "pg/report.hpp"
#include "pg/scope.hpp"
#include "pg/stats.hpp"

namespace idem::api {
namespace {

using pg::Counter;

// The scope's name, the counters in their order, and since when.
constexpr int columns = 2 + static_cast<int>(pg::counter_count);
using Result = pg::Row<columns>;

Datum shown(Counter which, std::int64_t value) {
    if (which == Counter::wait_time) return IntervalPGetDatum(pg::interval_of(value));
    return Int64GetDatum(value);
}

void add_row(FunctionCallInfo fcinfo, std::string_view name, const pg::ScopeStats& stats) {
    Result row;
    row.set_text(0, name);
    for (std::size_t i = 0; i < pg::counter_count; ++i)
        row.set(1 + static_cast<int>(i), shown(static_cast<Counter>(i), stats.counters[i]));
    row.set_time(columns - 1, stats.since);
    row.add_to_result_of(fcinfo);
}

void show(TupleTableSlot* slot, FunctionCallInfo fcinfo) {
    using namespace pg::scope_row;
    if (!pg::may_observe(DatumGetObjectId(*column(slot, column_owner)))) return;
    const auto stats = pg::read_stats(DatumGetInt32(*column(slot, column_id)));
    if (stats) add_row(fcinfo, pg::view_of(DatumGetTextPP(*column(slot, column_name))), *stats);
}

}  // namespace
}  // namespace idem::api

IDEM_FUNCTION(idem_scope_stats) {
    using namespace idem;
    InitMaterializedSRF(fcinfo, 0);
    if (pg::stats_available())
        pg::scan_committed(pg::Table::scope,
                           [fcinfo](TupleTableSlot* slot) { api::show(slot, fcinfo); });
    return Datum{0};
}

// Counters are no part of any transaction, and neither is their reset.
IDEM_FUNCTION(idem_stats_reset) {
    using namespace idem;
    api::require_writable("idem.stats_reset()");
    std::optional<std::int32_t> scope_id;
    if (const auto name = pg::text_arg(fcinfo, 0)) {
        const pg::Scope* scope = pg::find_scope(*name);
        if (scope == nullptr)
            pg::report::unknown_scope(*name, pg::nearest_scope(*name), nullptr, false);
        scope_id = scope->id;
    }
    pg::reset_stats(scope_id);
    PG_RETURN_VOID();
}
