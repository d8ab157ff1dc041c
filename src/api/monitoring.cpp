// What an administrator watches, in four parts:
//   - the counters and histograms of each scope: idem_internal.scope_stats(),
//   idem_internal.scope_durations(),
//     idem.stats_reset(), idem_internal.preloaded()
//   - the keys that are replayed most often: idem_internal.scope_hot_keys()
//   - the keys that transactions hold: idem_internal.open_claims(), idem_internal.prepared_claims()
//   - what the record table holds: idem.survey(), idem.key_survey()
//
// Counters and surveys show numbers, never a key or a tenant, so roles that monitor the server may
// read them. Keys are shown only to roles that may use their scope.
#include "api/arguments.hpp"
#include "pg/boundary.hpp"
#include "pg/census.hpp"
#include "pg/report.hpp"
#include "pg/scope.hpp"
#include "pg/stats.hpp"
#include "pg/survey.hpp"
#include "pg/wakeup.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;
namespace scope_row = pg::scope_row;
using pg::Counter;

std::int32_t id_of(TupleTableSlot* slot) {
    return DatumGetInt32(*scope_row::column(slot, scope_row::column_id));
}

Oid owner_of(TupleTableSlot* slot) {
    return DatumGetObjectId(*scope_row::column(slot, scope_row::column_owner));
}

std::string_view name_of(TupleTableSlot* slot) {
    return pg::view_of(DatumGetTextPP(*scope_row::column(slot, scope_row::column_name)));
}

// ---- Counters -----------------------------------------------------------------------------------

// The scope's name, the counters up to the advances, since when they count, and the other counters.
constexpr int stats_columns = 2 + static_cast<int>(pg::counter_count);
constexpr int stats_since = 1 + static_cast<int>(Counter::advances);
using StatsRow = pg::Row<stats_columns>;

constexpr int stats_column(Counter which) {
    const int column = 1 + static_cast<int>(which);
    return column < stats_since ? column : column + 1;
}

Datum shown(Counter which, std::int64_t value) {
    if (which == Counter::wait_time) return IntervalPGetDatum(pg::interval_of(value));
    return Int64GetDatum(value);
}

void add_stats(FunctionCallInfo fcinfo, std::string_view name, const pg::ScopeStats& stats) {
    StatsRow row;
    row.set_text(0, name);
    for (std::size_t i = 0; i < pg::counter_count; ++i) {
        const auto which = static_cast<Counter>(i);
        row.set(stats_column(which), shown(which, stats.counters[i]));
    }
    row.set_time(stats_since, stats.since);
    row.add_to_result_of(fcinfo);
}

// ---- Histograms ---------------------------------------------------------------------------------

enum DurationsColumn {
    durations_scope,
    durations_kind,
    durations_count,
    durations_total,
    durations_p50,
    durations_p90,
    durations_p99,
    durations_upper_bounds,
    durations_counts,
    durations_since,
    durations_columns
};
using DurationsRow = pg::Row<durations_columns>;

const char* name_of(pg::Duration kind) {
    switch (kind) {
        case pg::Duration::atomic:
            return "atomic";
        case pg::Duration::leased:
            return "leased";
        case pg::Duration::wait:
            return "wait";
        case pg::Duration::count:
            break;
    }
    pg_unreachable();
}

ArrayType* array_of(const core::BucketCounts& counts) {
    std::array<Datum, core::bucket_count> values;
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = Int64GetDatum(counts[i]);
    return construct_array(values.data(), static_cast<int>(values.size()), INT8OID,
                           sizeof(std::int64_t), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE);
}

ArrayType* upper_bounds() {
    std::array<Datum, core::bounded_buckets> values;
    for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = IntervalPGetDatum(pg::interval_of(core::upper_bound(i)));
    return construct_array(values.data(), static_cast<int>(values.size()), INTERVALOID,
                           sizeof(Interval), false, TYPALIGN_DOUBLE);
}

void set_quantile(DurationsRow& row, int column, const pg::Histogram& durations, int percent) {
    if (const auto bound = core::quantile(durations.counts, percent))
        row.set_pointer(column, pg::interval_of(*bound));
}

void add_durations(FunctionCallInfo fcinfo, std::string_view name, pg::Duration kind,
                   const pg::Histogram& durations, TimestampTz since) {
    DurationsRow row;
    row.set_text(durations_scope, name);
    row.set_text(durations_kind, name_of(kind));
    row.set_bigint(durations_count, core::count_of(durations.counts));
    row.set_pointer(durations_total, pg::interval_of(durations.total));
    set_quantile(row, durations_p50, durations, 50);
    set_quantile(row, durations_p90, durations, 90);
    set_quantile(row, durations_p99, durations, 99);
    row.set_pointer(durations_upper_bounds, upper_bounds());
    row.set_pointer(durations_counts, array_of(durations.counts));
    row.set_time(durations_since, since);
    row.add_to_result_of(fcinfo);
}

void add_all_durations(FunctionCallInfo fcinfo, std::string_view name,
                       const pg::ScopeStats& stats) {
    for (std::size_t i = 0; i < pg::duration_count; ++i)
        add_durations(fcinfo, name, static_cast<pg::Duration>(i), stats.durations[i], stats.since);
}

// Calls add(fcinfo, name, stats) for each scope that is counted and that the caller may observe.
template <class Add>
void show_counted(FunctionCallInfo fcinfo, Add add) {
    InitMaterializedSRF(fcinfo, 0);
    if (!pg::stats_available()) return;
    pg::scan_committed(pg::Table::scope, [fcinfo, add](TupleTableSlot* slot) {
        if (!pg::may_observe(owner_of(slot))) return;
        const auto stats = pg::read_stats(id_of(slot));
        if (stats) add(fcinfo, name_of(slot), *stats);
    });
}

// ---- Keys that are replayed most often ----------------------------------------------------------

enum HotColumn {
    hot_scope,
    hot_tenant,
    hot_key,
    hot_replays,
    hot_conflicts,
    hot_first_seen,
    hot_last_seen,
    hot_created,
    hot_columns
};

// Adds what the record tells. A slot that was given up and taken again may still get the digest of
// a key of the old scope; false then.
bool add_record(pg::Row<hot_columns>& row, const pg::NamedRecord& record, std::int32_t scope_id,
                bool shows_keys) {
    if (record.name.scope_id != scope_id) return false;
    if (shows_keys) {
        row.set_text(hot_tenant, record.name.tenant);
        row.set_text(hot_key, record.name.key);
    }
    row.set_time(hot_created, record.created);
    return true;
}

void show_hot_keys(FunctionCallInfo fcinfo, const pg::Records& records, TupleTableSlot* slot) {
    const Oid owner = owner_of(slot);
    if (!pg::may_observe(owner)) return;
    const bool shows_keys = has_privs_of_role(GetUserId(), owner);
    for (const pg::HotKeyCounts& counts : pg::read_hot_keys(id_of(slot))) {
        pg::Row<hot_columns> row;
        row.set_text(hot_scope, name_of(slot));
        row.set(hot_replays, Int64GetDatum(counts.replays));
        row.set(hot_conflicts, Int64GetDatum(counts.conflicts));
        row.set_time(hot_first_seen, counts.first_seen);
        row.set_time(hot_last_seen, counts.last_seen);
        const auto record = pg::record_behind(records, counts.digest);
        if (record && !add_record(row, *record, id_of(slot), shows_keys)) continue;
        row.add_to_result_of(fcinfo);
    }
}

// ---- Keys that transactions hold ----------------------------------------------------------------

// The columns up to the time are those of both functions; the others are those of open_claims().
enum HeldColumn {
    held_scope,
    held_tenant,
    held_key,
    held_attempt,
    held_since,
    held_pid,
    held_state,
    held_keys,
    held_columns
};
constexpr int prepared_transaction = held_pid;  // of prepared_claims()
constexpr int prepared_columns = prepared_transaction + 1;

// NULL if the scope was dropped, or if the caller may not use it.
const pg::Scope* visible_scope(std::int32_t id) {
    const pg::Scope* scope = pg::find_scope_by_id(id);
    return scope != nullptr && has_privs_of_role(GetUserId(), scope->owner) ? scope : nullptr;
}

template <int Columns>
void set_claim(pg::Row<Columns>& row, const pg::Scope& scope, std::string_view tenant,
               std::string_view key, std::int32_t attempt, TimestampTz since) {
    row.set_text(held_scope, scope.name);
    row.set_text(held_tenant, tenant);
    row.set_text(held_key, key);
    row.set_int(held_attempt, attempt);
    row.set_time(held_since, since);
}

void show_claim(FunctionCallInfo fcinfo, const pg::HeldClaim& claim, int pid) {
    const pg::Scope* scope = visible_scope(claim.scope_id);
    if (scope == nullptr) return;
    const bool open = claim.as == pg::HeldAs::open;
    pg::Row<held_columns> row;
    set_claim(row, *scope, claim.tenant(), claim.key(), claim.attempt, claim.since);
    row.set_int(held_pid, pid);
    row.set_text(held_state, open ? "open" : "uncommitted");
    row.set_int(held_keys, claim.keys);
    row.add_to_result_of(fcinfo);
}

void show_prepared(const pg::PreparedClaim& claim, void* data) {
    const pg::Scope* scope = visible_scope(claim.scope_id);
    if (scope == nullptr) return;
    pg::Row<prepared_columns> row;
    set_claim(row, *scope, claim.tenant, claim.key, claim.attempt, claim.created);
    row.set(prepared_transaction, TransactionIdGetDatum(claim.transaction));
    row.add_to_result_of(static_cast<FunctionCallInfo>(data));
}

// ---- The survey ---------------------------------------------------------------------------------

// 16 MB, or some 100,000 records, which take about a tenth of a second to read.
constexpr std::int32_t default_max_blocks = 2048;

enum SurveyArgument { arg_scope, arg_max_blocks };

enum SurveyColumn {
    survey_scope,
    survey_in_progress,
    survey_completed,
    survey_failed,
    survey_lapsed,
    survey_exhausted,
    survey_weak,
    survey_answer_bytes,
    survey_oldest,
    survey_newest,
    survey_next_expiry,
    survey_lapsed_since,
    survey_expired,
    survey_expired_since,
    survey_coverage,
    survey_columns
};

void add_survey(FunctionCallInfo fcinfo, const pg::Survey& survey, std::int32_t scope_id,
                std::optional<std::string_view> name) {
    const pg::ScopeTotals& totals = survey.totals(scope_id);
    pg::Row<survey_columns> row;
    if (name) row.set_text(survey_scope, *name);
    row.set(survey_in_progress, Int64GetDatum(totals.in_progress));
    row.set(survey_completed, Int64GetDatum(totals.completed));
    row.set(survey_failed, Int64GetDatum(totals.failed));
    row.set(survey_lapsed, Int64GetDatum(totals.lapsed));
    row.set(survey_exhausted, Int64GetDatum(totals.exhausted));
    row.set(survey_weak, Int64GetDatum(totals.weak));
    row.set(survey_answer_bytes, Int64GetDatum(totals.answer_bytes));
    row.set_time(survey_oldest, totals.oldest);
    row.set_time(survey_newest, totals.newest);
    row.set_time(survey_next_expiry, totals.next_expiry);
    row.set_time(survey_lapsed_since, totals.lapsed_since);
    row.set(survey_expired, Int64GetDatum(totals.expired));
    row.set_time(survey_expired_since, totals.expired_since);
    row.set(survey_coverage, Float8GetDatum(survey.coverage()));
    row.add_to_result_of(fcinfo);
}

void add_scope(pg::Survey& survey, TupleTableSlot* slot) {
    const auto max_attempts = scope_row::column(slot, scope_row::column_of("max_attempts"));
    survey.add_scope(id_of(slot),
                     max_attempts ? std::optional(DatumGetInt32(*max_attempts)) : std::nullopt,
                     scope_row::ttl(slot));
}

void survey_one(FunctionCallInfo fcinfo, std::string_view name, BlockNumber max_blocks) {
    const pg::Scope scope = pg::usable_scope(name, "survey");
    pg::Survey survey;
    survey.add_scope(scope.id, scope.max_attempts, scope.ttl);
    survey.run(GetCurrentTimestamp(), max_blocks);
    add_survey(fcinfo, survey, scope.id, scope.name);
}

// Calls add(fcinfo, survey, scope id, name) for each scope that the caller may observe. Scopes that
// are created while the table is read are left out.
template <class Add>
void survey_scopes(FunctionCallInfo fcinfo, pg::Survey& survey, BlockNumber max_blocks, Add add) {
    pg::scan_committed(pg::Table::scope, [&](TupleTableSlot* slot) { add_scope(survey, slot); });
    survey.run(GetCurrentTimestamp(), max_blocks);
    pg::scan_committed(pg::Table::scope, [&](TupleTableSlot* slot) {
        const std::int32_t id = id_of(slot);
        if (survey.knows(id) && pg::may_observe(owner_of(slot)))
            add(fcinfo, survey, id, name_of(slot));
    });
}

void survey_all(FunctionCallInfo fcinfo, BlockNumber max_blocks) {
    pg::Survey survey;
    survey_scopes(fcinfo, survey, max_blocks, add_survey);
    if (pg::may_observe(InvalidOid)) add_survey(fcinfo, survey, pg::no_scope, std::nullopt);
}

enum KeySurveyColumn {
    keys_scope,
    keys_short_lived,
    keys_long_lived,
    keys_untenanted,
    keys_shared,
    keys_coverage,
    keys_columns
};

void add_key_survey(FunctionCallInfo fcinfo, const pg::Survey& survey, std::int32_t scope_id,
                    std::string_view name) {
    const pg::ScopeTotals& totals = survey.totals(scope_id);
    pg::Row<keys_columns> row;
    row.set_text(keys_scope, name);
    row.set(keys_short_lived, Int64GetDatum(totals.short_lived));
    row.set(keys_long_lived, Int64GetDatum(totals.long_lived));
    row.set(keys_untenanted, Int64GetDatum(totals.untenanted));
    row.set(keys_shared, Int64GetDatum(totals.shared));
    row.set(keys_coverage, Float8GetDatum(survey.coverage()));
    row.add_to_result_of(fcinfo);
}

BlockNumber max_blocks_arg(FunctionCallInfo fcinfo) {
    const std::int32_t blocks = pg::int_arg(fcinfo, arg_max_blocks).value_or(default_max_blocks);
    if (blocks < 1)
        report::invalid_argument("max_blocks", "The number must be at least 1.",
                                 "Pass how many blocks to read at most, such as 1000.");
    return static_cast<BlockNumber>(blocks);
}

}  // namespace

}  // namespace idem::api

IDEM_FUNCTION(idem_scope_stats) {
    using namespace idem;
    api::show_counted(fcinfo, api::add_stats);
    return Datum{0};
}

IDEM_FUNCTION(idem_scope_durations) {
    using namespace idem;
    api::show_counted(fcinfo, api::add_all_durations);
    return Datum{0};
}

IDEM_FUNCTION(idem_scope_hot_keys) {
    using namespace idem;
    InitMaterializedSRF(fcinfo, 0);
    if (!pg::stats_available()) return Datum{0};
    const pg::Records records = pg::Records::to_read(pg::common_records);
    pg::scan_committed(pg::Table::scope,
                       [&](TupleTableSlot* slot) { api::show_hot_keys(fcinfo, records, slot); });
    records.close();
    return Datum{0};
}

// The counters are not transactional, and neither is their reset.
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

// Whether idem has its shared memory, which the counters need.
IDEM_FUNCTION(idem_preloaded) {
    PG_RETURN_BOOL(idem::pg::stats_available());
}

// How many backends wait for a wake-up. No SQL script declares it; the tests do.
IDEM_FUNCTION(idem_announced_waits) {
    PG_RETURN_INT32(idem::pg::announced_waits());
}

IDEM_FUNCTION(idem_open_claims) {
    using namespace idem;
    InitMaterializedSRF(fcinfo, 0);
    for (int backend = 0; backend < pg::backends_in_census(); ++backend) {
        pg::HeldClaim claim;
        const int pid = pg::read_held_claim(backend, claim);
        if (pid != 0) api::show_claim(fcinfo, claim, pid);
    }
    return Datum{0};
}

IDEM_FUNCTION(idem_prepared_claims) {
    using namespace idem;
    InitMaterializedSRF(fcinfo, 0);
    pg::visit_prepared_claims(api::show_prepared, fcinfo);
    return Datum{0};
}

IDEM_FUNCTION(idem_survey) {
    using namespace idem;
    const BlockNumber max_blocks = api::max_blocks_arg(fcinfo);
    InitMaterializedSRF(fcinfo, 0);
    if (const auto name = pg::text_arg(fcinfo, api::arg_scope))
        api::survey_one(fcinfo, *name, max_blocks);
    else
        api::survey_all(fcinfo, max_blocks);
    return Datum{0};
}

IDEM_FUNCTION(idem_key_survey) {
    using namespace idem;
    InitMaterializedSRF(fcinfo, 0);
    pg::Survey survey;
    survey.compare_tenants();
    api::survey_scopes(fcinfo, survey, api::default_max_blocks, api::add_key_survey);
    return Datum{0};
}
