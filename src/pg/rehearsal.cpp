#include "pg/rehearsal.hpp"

#include "pg/compat.hpp"
#include "pg/report.hpp"
#include "pg/table.hpp"

namespace idem::pg {

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

void note_step(const char* call) {
    Assert(rehearsing);
    if (memory == nullptr) return;  // before the first run
    const MemoryContext before = MemoryContextSwitchTo(memory);
    run.steps = lappend(run.steps, pstrdup(call));
    MemoryContextSwitchTo(before);
    if (list_length(run.steps) != run.failing) return;
    run.failed = true;
    report::rehearsed_error(call);
}

void note_conflict() {
    run.conflicted = true;
}

namespace {

// A large object is a row that an application writes, although it is in a catalog.
bool is_of_application(Oid table) {
    if (get_rel_name(table) == nullptr) return false;  // dropped
    if (IsCatalogRelationOid(table) && table != LargeObjectRelationId) return false;
    if (get_rel_persistence(table) == RELPERSISTENCE_TEMP) return false;
    return get_rel_namespace(table) != own_schema();
}

void append_count(StringInfo text, PgStat_Counter count, const char* what) {
    if (count == 0) return;
    const bool first = text->data[text->len - 1] == ':';
    appendStringInfo(text, "%s " INT64_FORMAT " %s", first ? "" : ",",
                     static_cast<std::int64_t>(count), what);
}

char* description(Oid table, const PgStat_TableXactStatus& counts) {
    StringInfoData text;
    initStringInfo(&text);
    appendStringInfo(&text, "%s:", qualified_name(table));
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
        const Oid table = compat::counted_table(*counts);
        if (has_changes(*counts) && is_of_application(table))
            tables = lappend(tables, description(table, *counts));
    }
    return tables;
}

}  // namespace idem::pg
