// The purge worker: one visit to one database.
//
// It deletes expired records, and removes answers that are kept no longer, in batches, each in a
// transaction of its own, so that a claim of such a key waits for at most one batch. It waits for
// no lock. It reports what it found to the launcher, and stores in the database where it stopped.
#include "core/pacing.hpp"
#include "pg/compat.hpp"
#include "pg/guc.hpp"
#include "pg/record.hpp"
#include "pg/scope.hpp"
#include "pg/stats.hpp"
#include "pg/sweep.hpp"
#include "pg/table.hpp"
#include "pg/visit.hpp"
#include "worker/worker.hpp"

namespace idem::worker {
namespace {

using core::usecs_per_second;

constexpr std::int64_t longest_visit = 2 * usecs_per_second;
constexpr std::int64_t blocks_a_batch = 1024;
constexpr int table_patience = 5000;  // milliseconds for a table in a batch

// Overrides the database's own settings. A batch need not be durable at once: what a crash undoes
// is purged again.
void set_up() {
    const auto set = [](const char* name, const char* value) {
        SetConfigOption(name, value, PGC_USERSET, PGC_S_OVERRIDE);
    };
    set("synchronous_commit", "off");
    set("default_transaction_isolation", "read committed");
    set("lock_timeout", "0");
    set("search_path", "");
}

void begin() {
    SetCurrentStatementStartTimestamp();
    StartTransactionCommand();
    PushActiveSnapshot(GetTransactionSnapshot());
}

// The statistics are reported after each batch, so that autovacuum learns of the deletes.
void end() {
    PopActiveSnapshot();
    CommitTransactionCommand();
    pgstat_report_stat(true);
}

// Includes the scopes that other transactions are creating or dropping, whether or not they commit.
List* existing_scopes() {
    using namespace pg::scope_row;
    SnapshotData dirty;
    InitDirtySnapshot(dirty);
    List* ids = NIL;
    pg::scan_table(pg::Table::scope, &dirty, [&ids](TupleTableSlot* slot) {
        ids = lappend_int(ids, DatumGetInt32(*column(slot, column_id)));
    });
    return ids;
}

struct Need {
    pg::Table table;
    LOCKMODE mode;
};

// Scopes are only read: a transaction that has created one does not keep the worker out. The order
// is that of creation, in which DROP EXTENSION locks the tables.
constexpr std::array needs = {
    Need{pg::Table::scope_id, AccessShareLock}, Need{pg::Table::scope, AccessShareLock},
    Need{pg::Table::record, RowExclusiveLock}, Need{pg::Table::sweep, AccessShareLock},
    Need{pg::Table::dropped_scope, AccessShareLock}};

// A schema and tables of these names may exist without the extension.
bool belongs_to(Oid extension, Oid table) {
    return OidIsValid(table) && getExtensionOfObject(RelationRelationId, table) == extension;
}

// swept: the extension's own tables exist, in the layout that this library expects, and are locked
// as purging needs it until the transaction ends. Never waits: a transaction that drops, rebuilds
// or upgrades them goes first, and the result is busy.
pg::VisitOutcome lock_installation() {
    const Oid extension = get_extension_oid("idem", true);
    if (!OidIsValid(extension)) return pg::VisitOutcome::absent;
    for (const auto& [table, mode] : needs) {
        const Oid oid = pg::find_table_oid(table);
        if (!belongs_to(extension, oid)) return pg::VisitOutcome::absent;
        if (!ConditionalLockRelationOid(oid, mode)) return pg::VisitOutcome::busy;
        // The table may have gone before we had the lock; taking the lock accepted invalidations.
        if (pg::find_table_oid(table) != oid) return pg::VisitOutcome::absent;
    }
    return pg::has_record_layout() ? pg::VisitOutcome::swept : pg::VisitOutcome::absent;
}

// Gives up the statistics of scopes that do not exist any more. The list of statistics is read
// before the scopes, so that the statistics of a new scope are safe.
void forget_statistics(bool installed) {
    const auto counted = pg::counted_scopes();
    const Oid relation = installed ? pg::table_oid(pg::Table::scope) : InvalidOid;
    const List* existing = installed ? existing_scopes() : NIL;
    for (const pg::ScopeIdentity& scope : counted)
        if (scope.database == MyDatabaseId &&
            (scope.relation != relation || !list_member_int(existing, scope.scope_id)))
            pg::give_up_stats(scope);
}

// Purges one batch and returns how it ended. The sweep has been around all tables if
// swept.blocks == swept.all_blocks.
pg::VisitOutcome sweep(std::int32_t rate, pg::SweepResult& swept) {
    begin();
    const pg::VisitOutcome outcome = lock_installation();
    if (outcome == pg::VisitOutcome::swept)
        swept = pg::sweep_step(GetCurrentTimestamp(),
                               {core::batch_records(rate), blocks_a_batch, table_patience});
    if (outcome == pg::VisitOutcome::absent) forget_statistics(false);
    end();
    return outcome;
}

// In a transaction, because the name of the database is looked up.
void log_visit(const pg::Visit& visit) {
    if (pg::guc::log_transitions == 0 || visit.counts.deleted == 0) return;
    begin();
    ereport(pg::guc::log_transitions,
            (errmsg_plural("purge worker has purged %lld record in database \"%s\"",
                           "purge worker has purged %lld records in database \"%s\"",
                           static_cast<unsigned long>(visit.counts.deleted),
                           static_cast<long long>(visit.counts.deleted),
                           get_database_name(MyDatabaseId))));
    end();
}

void tidy_up() {
    begin();
    if (lock_installation() == pg::VisitOutcome::swept) forget_statistics(true);
    end();
}

void show_progress(std::int64_t visited, std::int64_t all_blocks, const core::VisitCounts& counts) {
    char text[128];
    snprintf(text, sizeof text, "idem: purging, block %lld of %lld, %lld records purged",
             static_cast<long long>(visited), static_cast<long long>(all_blocks),
             static_cast<long long>(counts.deleted));
    pgstat_report_activity(STATE_RUNNING, text);
}

// Purges batch by batch, until the sweep has been around the tables once or the time is up.
void work(pg::Visit& visit) {
    const std::uint32_t wait_event = pg::compat::wait_event("IdemPurgerRest");
    const std::int64_t start = pg::read_clocks().steady;
    std::int64_t visited = 0;
    for (;;) {
        const core::Clocks before = pg::read_clocks();
        if (!core::agree(visit.clocks, before)) {
            visit.outcome = pg::VisitOutcome::clocks;
            return;
        }
        const std::int32_t rate = pg::guc::purge_rate;
        pg::SweepResult swept{};
        visit.outcome = sweep(rate, swept);
        if (visit.outcome != pg::VisitOutcome::swept) return;
        visited += swept.blocks;
        visit.counts.seen += swept.seen;
        visit.counts.deleted += swept.deleted + swept.erased;
        visit.counts.more = visited < swept.all_blocks;
        show_progress(visited, swept.all_blocks, visit.counts);
        const std::int64_t now = pg::read_clocks().steady;
        if (!visit.counts.more || now - start >= longest_visit) return;
        const std::int64_t rest =
            core::rest_after(swept.deleted + swept.erased, rate, now - before.steady);
        if (rest > 0) sleep(rest, wait_event);
        CHECK_FOR_INTERRUPTS();
    }
}

void run(std::int32_t number) {
    pg::Visit visit = pg::find_visit(number);
    if (!OidIsValid(visit.database)) return;
    BackgroundWorkerInitializeConnectionByOid(visit.database, InvalidOid, 0);
    set_up();
    pgstat_report_activity(STATE_RUNNING, "idem: purging");
    work(visit);
    log_visit(visit);
    if (visit.outcome == pg::VisitOutcome::swept) tidy_up();
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
