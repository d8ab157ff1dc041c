// The purge worker: one visit to one database.
//
// Deletes expired records in batches, each a transaction of its own: a claim of such a key waits
// for one batch at most. It waits for nobody's lock. What it finds it reports to the launcher;
// where it stopped is kept in the database.
#include "core/pacing.hpp"
#include "pg/compat.hpp"
#include "pg/guc.hpp"
#include "pg/installation.hpp"
#include "pg/scope_row.hpp"
#include "pg/stats.hpp"
#include "pg/sweep.hpp"
#include "pg/visit.hpp"
#include "worker/worker.hpp"

namespace idem::worker {
namespace {

using core::usecs_per_second;

constexpr std::int64_t longest_visit = 2 * usecs_per_second;
constexpr BlockNumber blocks_a_batch = 1024;

// Whatever the database's own settings are. Nothing of it needs to be durable at once: what a crash
// undoes is purged again.
void set_up() {
    constexpr std::array<std::array<const char*, 2>, 4> settings = {{
        {"synchronous_commit", "off"},
        {"default_transaction_isolation", "read committed"},
        {"lock_timeout", "0"},
        {"search_path", ""},
    }};
    for (const auto& [name, value] : settings)
        SetConfigOption(name, value, PGC_USERSET, PGC_S_OVERRIDE);
}

void show_progress(const char* what) {
    pgstat_report_activity(STATE_RUNNING, what);
}

void begin() {
    SetCurrentStatementStartTimestamp();
    StartTransactionCommand();
    PushActiveSnapshot(GetTransactionSnapshot());
}

// Autovacuum learns of the deletes batch by batch.
void end() {
    PopActiveSnapshot();
    CommitTransactionCommand();
    pgstat_report_stat(true);
}

// Those that others are just creating or dropping too, whatever becomes of it.
List* existing_scopes() {
    using namespace pg::scope_row;
    Relation relation = pg::open_table(pg::Table::scope, AccessShareLock);
    SnapshotData dirty;
    InitDirtySnapshot(dirty);
    TableScanDesc scan = pg::compat::begin_table_scan(relation, &dirty);
    TupleTableSlot* slot = table_slot_create(relation, nullptr);
    List* ids = NIL;
    while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
        ids = lappend_int(ids, DatumGetInt32(*column(slot, column_id)));
    ExecDropSingleTupleTableSlot(slot);
    table_endscan(scan);
    table_close(relation, AccessShareLock);
    return ids;
}

// Gives up the statistics of scopes that are no more. They are noted before the scopes are read, so
// that those of a new one are safe.
void forget_statistics(pg::Installation installation) {
    const bool installed = installation == pg::Installation::ready;
    const auto counted = pg::counted_scopes();
    const Oid relation = installed ? pg::table_oid(pg::Table::scope) : InvalidOid;
    const List* existing = installed ? existing_scopes() : NIL;
    for (const pg::ScopeIdentity& scope : counted)
        if (scope.database == MyDatabaseId &&
            (scope.relation != relation || !list_member_int(existing, scope.scope_id)))
            pg::give_up_stats(scope);
}

// One batch. Returns what became of it; swept.blocks == swept.table: it has been all around.
pg::Ending sweep(std::int32_t rate, pg::Swept& swept) {
    begin();
    const pg::Installation installation = pg::lock_installation();
    if (installation == pg::Installation::ready)
        swept = pg::sweep_step(GetCurrentTimestamp(), {core::batch_records(rate), blocks_a_batch});
    if (installation == pg::Installation::absent) forget_statistics(installation);
    end();
    switch (installation) {
        case pg::Installation::absent:
            return pg::Ending::absent;
        case pg::Installation::busy:
            return pg::Ending::busy;
        case pg::Installation::ready:
            return pg::Ending::swept;
    }
    pg_unreachable();
}

void tidy_up() {
    begin();
    const pg::Installation installation = pg::lock_installation();
    if (installation == pg::Installation::ready) forget_statistics(installation);
    end();
}

void show_progress(const pg::Swept& swept, const core::VisitCounts& counts) {
    char text[128];
    snprintf(text, sizeof text, "idem: purging, block %u of %u, %lld records deleted", swept.hand,
             swept.table, static_cast<long long>(counts.deleted));
    show_progress(text);
}

// Batch by batch, once around the table or until the time is up.
void work(pg::Visit& visit) {
    const std::uint32_t wait_event = pg::compat::wait_event("IdemPurgerRest");
    const std::int64_t start = pg::read_clocks().steady;
    BlockNumber visited = 0;
    for (;;) {
        const core::Clocks before = pg::read_clocks();
        if (!core::agree(visit.clocks, before)) {
            visit.ending = pg::Ending::clocks;
            return;
        }
        const std::int32_t rate = pg::guc::purge_rate;
        pg::Swept swept{};
        visit.ending = sweep(rate, swept);
        if (visit.ending != pg::Ending::swept) return;
        visited += swept.blocks;
        visit.counts.seen += swept.seen;
        visit.counts.deleted += swept.deleted;
        visit.counts.more = visited < swept.table;
        show_progress(swept, visit.counts);
        const std::int64_t now = pg::read_clocks().steady;
        if (!visit.counts.more || now - start >= longest_visit) return;
        const std::int64_t rest = core::rest_after(swept.deleted, rate, now - before.steady);
        if (rest > 0) sleep(rest, wait_event);
        CHECK_FOR_INTERRUPTS();
    }
}

void run(std::int32_t number) {
    pg::Visit visit = pg::find_visit(number);
    if (!OidIsValid(visit.database)) return;
    BackgroundWorkerInitializeConnectionByOid(visit.database, InvalidOid, 0);
    set_up();
    show_progress("idem: purging");
    work(visit);
    if (visit.ending == pg::Ending::swept) tidy_up();
    pg::report_visit(visit);
    pgstat_report_activity(STATE_IDLE, nullptr);
}

}  // namespace
}  // namespace idem::worker

extern "C" {
PGDLLEXPORT void idem_purger_main(Datum);
}

void idem_purger_main(Datum number) {
    idem::worker::catch_signals();
    idem::worker::run(DatumGetInt32(number));
}
