// The purge worker: one run in one database.
//
// It deletes expired records, and removes answers that are kept no longer, in batches, each in a
// transaction of its own, so that a claim of such a key waits for at most one batch. It waits for
// no lock. It reports what it found to the launcher, and stores in the database where it stopped.
#include "pg/purge.hpp"
#include "pg/server/guc.hpp"
#include "pg/shared/stats.hpp"
#include "pg/store/record.hpp"
#include "pg/store/scope.hpp"
#include "pg/store/table.hpp"
#include "pg/store/version.hpp"
#include "worker/worker.hpp"

extern "C" {
#include "commands/dbcommands.h"
#include "postmaster/bgworker.h"
}

namespace idem::worker {
namespace {

using core::usecs_per_second;

constexpr std::int64_t longest_task = 2 * usecs_per_second;
constexpr std::int64_t blocks_a_batch = 1024;
constexpr int stretch_limit_ms = 5000;  // milliseconds for a pass over a stretch

// Overrides the database's own settings. A batch need not be durable at once: what a crash undoes
// is purged again.
void set_up() {
    const auto set = [](const char* name, const char* value) {
        SetConfigOption(name, value, PGC_USERSET, PGC_S_OVERRIDE);
    };
    set("synchronous_commit", "off");
    set("default_transaction_isolation", "read committed");
    set("lock_timeout", "0");
    if constexpr (pg::compat::has_transaction_timeout) set("transaction_timeout", "0");
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
    SnapshotData dirty;
    InitDirtySnapshot(dirty);
    List* ids = NIL;
    pg::scan_table(pg::Table::scope, &dirty, [&ids](TupleTableSlot* slot) {
        ids = lappend_int(ids, pg::scope_row::id_of(slot));
    });
    return ids;
}

// Scopes are only read: a transaction that has created one does not keep the worker out. The order
// is that of creation, in which DROP EXTENSION locks the tables.
using Need = std::pair<pg::Table, LOCKMODE>;
constexpr std::array needs = {
    Need{pg::Table::scope_id, AccessShareLock}, Need{pg::Table::scope, AccessShareLock},
    Need{pg::Table::record, RowExclusiveLock}, Need{pg::Table::purge_progress, AccessShareLock},
    Need{pg::Table::dropped_scope, AccessShareLock}};

// purged: the extension's own tables exist, in the layout that this library expects, and are locked
// as purging needs it until the transaction ends. Never waits: a transaction that drops, rebuilds
// or upgrades them goes first, and the purge is postponed.
Outcome lock_installation() {
    if (!OidIsValid(get_extension_oid("idem", true))) return Outcome::absent;
    for (const auto& [table, mode] : needs) {
        const Oid oid = pg::find_table_oid(table);
        if (!OidIsValid(oid)) return Outcome::absent;
        if (!ConditionalLockRelationOid(oid, mode)) return Outcome::postponed;
        // The table may have gone before we had the lock; taking the lock accepted invalidations.
        if (pg::find_table_oid(table) != oid) return Outcome::absent;
    }
    return pg::has_record_layout() && std::is_gteq(pg::library_order()) ? Outcome::purged
                                                                        : Outcome::absent;
}

// Gives up the statistics of scopes that do not exist any more, here or in dropped databases. The
// list of statistics is read before the scopes and the databases, so that the statistics of a new
// scope are safe.
void forget_statistics(bool installed) {
    const auto counted = pg::counted_scopes();
    const Oid relation = installed ? pg::table_oid(pg::Table::scope) : InvalidOid;
    const List* existing = installed ? existing_scopes() : NIL;
    for (const pg::ScopeIdentity& scope : counted) {
        const bool exists =
            scope.database == MyDatabaseId
                ? scope.relation == relation && list_member_int(existing, scope.scope_id)
                : SearchSysCacheExists1(DATABASEOID, ObjectIdGetDatum(scope.database));
        if (!exists) pg::give_up_stats(scope);
    }
}

// Purges one batch of what had expired at that time, and returns how it ended. The purge has been
// around all tables if batch.blocks == batch.all_blocks. from: where the last batch ended.
Outcome purge_batch(TimestampTz now, std::int32_t rate, std::optional<pg::RecordBlock> from,
                    pg::PurgeResult& batch) {
    begin();
    const Outcome outcome = lock_installation();
    if (outcome == Outcome::purged)
        batch = pg::purge_step(now,
                               {core::batch_records(rate), blocks_a_batch, stretch_limit_ms, from});
    end();
    return outcome;
}

// After the last batch. The name of the database is looked up, which takes a transaction.
void finish_run(const Task& task) {
    begin();
    if (pg::guc::log_transitions != 0 && task.counts.deleted > 0)
        ereport(pg::guc::log_transitions,
                (errmsg_plural("purge worker has purged %lld record in database \"%s\"",
                               "purge worker has purged %lld records in database \"%s\"",
                               static_cast<unsigned long>(task.counts.deleted),
                               static_cast<long long>(task.counts.deleted),
                               get_database_name(MyDatabaseId))));
    const Outcome installation = lock_installation();
    // A database that awaits its update, whose tables are not purged, keeps its statistics.
    const bool gone = !OidIsValid(get_extension_oid("idem", true));
    if (gone || installation == Outcome::purged) forget_statistics(!gone);
    end();
}

void show_progress(std::int64_t blocks_read, std::int64_t all_blocks,
                   const core::PurgeCounts& counts) {
    pgstat_report_activity(STATE_RUNNING,
                           psprintf("idem: purging, block " INT64_FORMAT " of " INT64_FORMAT
                                    ", " INT64_FORMAT " records purged",
                                    blocks_read, all_blocks, counts.deleted));
}

// Purges batch by batch, until the purge has been around the tables once or the time is up.
void work(Task& task) {
    const std::uint32_t wait_event = pg::compat::wait_event("IdemPurgerDelay");
    const std::int64_t start = read_clocks().steady;
    std::int64_t blocks_read = 0;
    std::optional<pg::RecordBlock> from;
    for (;;) {
        const core::Clocks before = read_clocks();
        if (!core::agree(task.clocks, before)) {
            task.outcome = Outcome::postponed;
            return;
        }
        const std::int32_t rate = pg::guc::purge_rate;
        pg::PurgeResult batch{};
        // Only this reading was compared: a later one may be of a clock that has just been set.
        task.outcome = purge_batch(before.wall, rate, from, batch);
        if (task.outcome != Outcome::purged) return;
        from = batch.next;
        blocks_read += batch.blocks;
        task.counts.seen += batch.seen;
        task.counts.deleted += batch.purged;
        task.counts.more = blocks_read < batch.all_blocks;
        show_progress(blocks_read, batch.all_blocks, task.counts);
        const std::int64_t now = read_clocks().steady;
        if (!task.counts.more || now - start >= longest_task) return;
        const std::int64_t delay = core::batch_delay(batch.purged, rate, now - before.steady);
        if (delay > 0) pause(delay, wait_event);
        CHECK_FOR_INTERRUPTS();
    }
}

void run_task(std::int32_t number) {
    Task task = find_task(number);
    if (!OidIsValid(task.database)) return;
    BackgroundWorkerInitializeConnectionByOid(task.database, InvalidOid, 0);
    set_up();
    pgstat_report_activity(STATE_RUNNING, "idem: purging");
    work(task);
    finish_run(task);
    report_task(task);
    pgstat_report_activity(STATE_IDLE, nullptr);
}

}  // namespace

extern "C" PGDLLEXPORT void idem_purger_main(Datum);
void idem_purger_main(Datum number) {
    catch_signals();
    run_task(DatumGetInt32(number));
}

}  // namespace idem::worker
