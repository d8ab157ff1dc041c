#include "rehearsal.hpp"

#include "pg/server/test_seam.hpp"

extern "C" {
#include "catalog/catalog.h"
#include "catalog/pg_largeobject.h"
#include "utils/pgstat_internal.h"
}

namespace idem::testing {

constinit bool rehearsing = false;

namespace {

constinit Observed run{};
constinit MemoryContext memory = nullptr;  // of the run's list

}  // namespace

void begin_rehearsal() {
    Assert(!rehearsing);
    memory = nullptr;
    rehearsing = true;
}

void end_rehearsal() {
    rehearsing = false;
}

void begin_run(int failing) {
    Assert(rehearsing && failing >= 0);
    run = {.steps = NIL, .failing = failing, .failed = false, .conflicted = false};
    memory = CurrentMemoryContext;
}

const Observed& observed() {
    return run;
}

void note_step(const char* function) {
    Assert(rehearsing);
    if (memory == nullptr) return;  // before the first run
    const MemoryContext before = MemoryContextSwitchTo(memory);
    run.steps = lappend(run.steps, pstrdup(function));
    MemoryContextSwitchTo(before);
    if (list_length(run.steps) != run.failing) return;
    run.failed = true;
    // The code is one that claims and completions do raise, and that never becomes a stored
    // failure.
    ereport(ERROR,
            (errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
             errmsg("rehearsed error in idem.%s()", function),
             errdetail("idem_test.rehearse() raises it, to see what the operation makes of an "
                       "error."),
             errhint("Let the error pass, or raise it again when the handler has cleaned up.")));
}

void note_conflict() {
    run.conflicted = true;
}

const pg::Claim* newest_claim() {
    const auto newest = pg::seam::find()->newest_claim;
    return newest == nullptr ? nullptr : newest();  // NULL until idem is loaded
}

namespace {

int& place_in(ClaimTally& tally, const pg::Claim& claim) {
    const bool atomic = claim.token.kind == core::TokenKind::atomic && !claim.of_source;
    switch (claim.phase) {
        case pg::Phase::open:
            return atomic ? tally.open_atomic : tally.open_leased;
        case pg::Phase::completed:
            return tally.completed;
        case pg::Phase::failed:
            return tally.failed;
        case pg::Phase::released:
            break;
    }
    return tally.released;
}

}  // namespace

ClaimTally claims_since(const pg::Claim* last) {
    ClaimTally tally;
    for (const pg::Claim* claim = newest_claim(); claim != last; claim = claim->older) {
        Assert(claim != nullptr);  // the last claim is still there
        ++place_in(tally, *claim);
    }
    return tally;
}

namespace {

// A large object is a row that an application writes, although it is in a catalog.
bool is_of_application(Oid table) {
    if (get_rel_name(table) == nullptr) return false;  // dropped
    if (IsCatalogRelationOid(table) && table != LargeObjectRelationId) return false;
    if (get_rel_persistence(table) == RELPERSISTENCE_TEMP) return false;
    return get_rel_namespace(table) != get_namespace_oid("idem", true);
}

void append_count(StringInfo text, PgStat_Counter count, const char* what) {
    if (count == 0) return;
    const bool first = text->data[text->len - 1] == ':';
    appendStringInfo(text, "%s " INT64_FORMAT " %s", first ? "" : ",",
                     static_cast<std::int64_t>(count), what);
}

Oid counted_table(const PgStat_TableXactStatus& counts) {
#if PG_VERSION_NUM >= 160000
    return counts.parent->id;
#else
    return counts.parent->t_id;
#endif
}

char* description(Oid table, const PgStat_TableXactStatus& counts) {
    StringInfoData text;
    initStringInfo(&text);
    appendStringInfo(&text, "%s:",
                     quote_qualified_identifier(get_namespace_name(get_rel_namespace(table)),
                                                get_rel_name(table)));
    append_count(&text, counts.tuples_inserted, "inserted");
    append_count(&text, counts.tuples_updated, "updated");
    append_count(&text, counts.tuples_deleted, "deleted");
    if (counts.truncdropped)
        appendStringInfo(&text, "%s truncated", text.data[text.len - 1] == ':' ? "" : ",");
    return text.data;
}

bool has_changes(const PgStat_TableXactStatus& counts) {
    return counts.tuples_inserted > 0 || counts.tuples_updated > 0 || counts.tuples_deleted > 0 ||
           counts.truncdropped;
}

}  // namespace

// The counts of a subtransaction that commits go to its parent's, and those of one that rolls back
// go nowhere that this list knows.
List* tables_written() {
    const PgStat_SubXactStatus* level =
        pgstat_get_xact_stack_level(GetCurrentTransactionNestLevel());
    List* tables = NIL;
    for (const auto* counts = level->first; counts != nullptr; counts = counts->next) {
        const Oid table = counted_table(*counts);
        if (has_changes(*counts) && is_of_application(table))
            tables = lappend(tables, description(table, *counts));
    }
    return tables;
}

}  // namespace idem::testing
