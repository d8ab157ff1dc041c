// idem.survey(): what the records of each scope come to; idem.preloaded(): whether what lives in
// shared memory is there.
//
// Figures, never a key or a tenant: so they are also for those who watch the server.
#include "api/arguments.hpp"
#include "pg/report.hpp"
#include "pg/scope.hpp"
#include "pg/scope_row.hpp"
#include "pg/stats.hpp"
#include "pg/survey.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;
namespace scope_row = pg::scope_row;

// 16 MB, some 100,000 records: read in about a tenth of a second.
constexpr std::int32_t default_max_blocks = 2048;

enum Argument { arg_scope, arg_max_blocks };

enum Column {
    column_scope,
    column_in_progress,
    column_completed,
    column_failed,
    column_lapsed,
    column_exhausted,
    column_weak,
    column_answer_bytes,
    column_oldest,
    column_newest,
    column_next_expiry,
    column_lapsed_since,
    column_expired,
    column_expired_since,
    column_coverage,
    columns
};

void add_row(FunctionCallInfo fcinfo, const pg::Survey& survey, std::int32_t scope_id,
             std::optional<std::string_view> name) {
    const pg::Tally& tally = survey.tally(scope_id);
    pg::Row<columns> row;
    if (name) row.set_text(column_scope, *name);
    row.set(column_in_progress, Int64GetDatum(tally.in_progress));
    row.set(column_completed, Int64GetDatum(tally.completed));
    row.set(column_failed, Int64GetDatum(tally.failed));
    row.set(column_lapsed, Int64GetDatum(tally.lapsed));
    row.set(column_exhausted, Int64GetDatum(tally.exhausted));
    row.set(column_weak, Int64GetDatum(tally.weak));
    row.set(column_answer_bytes, Int64GetDatum(tally.answer_bytes));
    row.set_time(column_oldest, tally.oldest);
    row.set_time(column_newest, tally.newest);
    row.set_time(column_next_expiry, tally.next_expiry);
    row.set_time(column_lapsed_since, tally.lapsed_since);
    row.set(column_expired, Int64GetDatum(tally.expired));
    row.set_time(column_expired_since, tally.expired_since);
    row.set(column_coverage, Float8GetDatum(survey.coverage()));
    row.add_to_result_of(fcinfo);
}

// The match of a scan over the scopes never matches, so that it sees all of them.
template <class Visit>
void for_each_scope(Visit visit) {
    (void)scope_row::scan_for(
        [&](TupleTableSlot* slot) {
            visit(slot);
            return false;
        },
        [](TupleTableSlot*) {});
}

void add_scope(pg::Survey& survey, TupleTableSlot* slot) {
    const auto max_attempts = scope_row::column(slot, scope_row::column_max_attempts);
    survey.add_scope(DatumGetInt32(*scope_row::column(slot, scope_row::column_id)),
                     max_attempts ? std::optional(DatumGetInt32(*max_attempts)) : std::nullopt);
}

void survey_one(FunctionCallInfo fcinfo, std::string_view name, BlockNumber max_blocks) {
    const pg::Scope scope = pg::usable_scope(name, "survey");
    pg::Survey survey;
    survey.add_scope(scope.id, scope.max_attempts);
    survey.run(GetCurrentTimestamp(), max_blocks);
    add_row(fcinfo, survey, scope.id, scope.name);
}

// What was created while the table was read is left out.
void survey_all(FunctionCallInfo fcinfo, BlockNumber max_blocks) {
    pg::Survey survey;
    for_each_scope([&](TupleTableSlot* slot) { add_scope(survey, slot); });
    survey.run(GetCurrentTimestamp(), max_blocks);
    for_each_scope([&](TupleTableSlot* slot) {
        const std::int32_t id = DatumGetInt32(*scope_row::column(slot, scope_row::column_id));
        const Oid owner = DatumGetObjectId(*scope_row::column(slot, scope_row::column_owner));
        if (survey.knows(id) && pg::may_observe(owner))
            add_row(fcinfo, survey, id,
                    pg::view_of(DatumGetTextPP(*scope_row::column(slot, scope_row::column_name))));
    });
    if (pg::may_observe(InvalidOid)) add_row(fcinfo, survey, pg::no_scope, std::nullopt);
}

BlockNumber max_blocks_arg(FunctionCallInfo fcinfo) {
    const std::int32_t blocks = pg::int_arg(fcinfo, arg_max_blocks).value_or(default_max_blocks);
    if (blocks < 1) report::invalid_argument("max_blocks", "The number must be at least 1.");
    return static_cast<BlockNumber>(blocks);
}

}  // namespace
}  // namespace idem::api

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

IDEM_FUNCTION(idem_preloaded) {
    PG_RETURN_BOOL(idem::pg::stats_available());
}
