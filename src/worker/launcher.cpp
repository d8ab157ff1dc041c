// The launcher: chooses the database to purge next and starts the purge worker for it.
//
// It reads pg_database once per round, remembers when each database is due, and waits for its one
// worker. It measures time by the steady clock, which cannot be set. If the time of day has not
// kept step with that clock, it skips a round.
#include "pg/server/compat.hpp"
#include "pg/server/guc.hpp"
#include "pg/server/hash_table.hpp"
#include "worker/worker.hpp"

extern "C" {
#include "catalog/pg_database.h"
#include "postmaster/bgworker.h"
}

namespace idem::worker {
namespace {

using core::Clocks;
using core::usecs_per_second;

// A worker that takes longer, perhaps because it waits for a lock on its database, is terminated.
constexpr std::int64_t task_limit = 20 * usecs_per_second;
// The clocks are compared at least this often.
constexpr std::int64_t longest_pause = 60 * usecs_per_second;
// DATCONNLIMIT_INVALID_DB, which older minor versions do not define: a DROP DATABASE was
// interrupted.
constexpr std::int32_t invalid_database = -2;

struct Database {
    Oid oid;  // the hash key
    std::int64_t delay;
    std::int64_t due;  // by the steady clock, as are all times here
    std::uint64_t round;
};

struct Launcher {
    pg::HashTable<Oid, Database> databases;
    std::uint64_t round;
    std::int64_t next_round;
    std::int64_t naptime;  // the setting from which the times below were computed
    Clocks trusted;        // the last readings that agreed
    std::int64_t quiet;    // no runs before this time
    std::int64_t back_off;
    std::int64_t may_log;  // no log line about missing workers before this time
    std::uint32_t wait_event;
};

std::int64_t naptime() {
    return std::int64_t{pg::guc::purge_naptime} * 1000;
}

void read_databases(Launcher& self, std::int64_t now) {
    MemoryContext context = CurrentMemoryContext;
    ++self.round;
    pgstat_report_activity(STATE_RUNNING, "idem: reading pg_database");
    SetCurrentStatementStartTimestamp();
    StartTransactionCommand();
    (void)GetTransactionSnapshot();
    Relation relation = table_open(DatabaseRelationId, AccessShareLock);
    TableScanDesc scan = table_beginscan_catalog(relation, 0, nullptr);
    while (HeapTuple tuple = heap_getnext(scan, ForwardScanDirection)) {
        const auto* row = reinterpret_cast<const FormData_pg_database*>(GETSTRUCT(tuple));
        if (!row->datallowconn || row->datistemplate || row->datconnlimit == invalid_database)
            continue;
        bool found;
        Database* database = self.databases.enter(row->oid, found);
        if (!found) *database = {row->oid, naptime(), now, 0};
        database->round = self.round;
    }
    table_endscan(scan);
    table_close(relation, AccessShareLock);
    self.databases.for_each([&self](const Database& database) {
        if (database.round != self.round) self.databases.remove(database.oid);
    });
    CommitTransactionCommand();
    MemoryContextSwitchTo(context);
    self.next_round = now + naptime();
}

// A changed setting applies at once, also to databases that are not due yet.
void follow_naptime(Launcher& self, std::int64_t now) {
    if (naptime() == self.naptime) return;
    self.naptime = naptime();
    self.next_round = now;
    self.quiet = std::min(self.quiet, now + self.naptime);
    self.databases.for_each([&self, now](Database& database) {
        database.delay = self.naptime;
        database.due = std::min(database.due, now + self.naptime);
    });
}

// The database that has been due for the longest time. NULL if there is no database.
Database* first_due(const Launcher& self) {
    Database* first = nullptr;
    self.databases.for_each([&first](Database& database) {
        if (first == nullptr || database.due < first->due) first = &database;
    });
    return first;
}

// False if the time of day has jumped. Nothing is purged for a round then.
bool clocks_are_sound(Launcher& self, const Clocks& now) {
    const std::int64_t by = core::jump(self.trusted, now);
    const bool sound = core::agree(self.trusted, now);
    self.trusted = now;
    if (sound) return true;
    self.quiet = now.steady + std::max(naptime(), usecs_per_second);
    ereport(LOG, (errmsg("the clock was set %s by %.0f seconds", by > 0 ? "forward" : "back",
                         static_cast<double>(by > 0 ? by : -by) / USECS_PER_SEC),
                  errdetail("The purge worker skips one round, and then purges again.")));
    return false;
}

// Either process, as it is registered with the postmaster.
BackgroundWorker worker_named(const char* name, const char* function, int restart_time) {
    BackgroundWorker worker{};
    worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
    worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
    worker.bgw_restart_time = restart_time;
    strlcpy(worker.bgw_name, name, BGW_MAXLEN);
    strlcpy(worker.bgw_type, name, BGW_MAXLEN);
    strlcpy(worker.bgw_library_name, "idem", BGW_MAXLEN);
    strlcpy(worker.bgw_function_name, function, BGW_MAXLEN);
    return worker;
}

void wait_for(Launcher& self, BackgroundWorkerHandle* handle) {
    const std::int64_t deadline = read_clocks().steady + task_limit;
    bool terminated = false;
    for (;;) {
        pid_t pid;
        const BgwHandleStatus status = GetBackgroundWorkerPid(handle, &pid);
        if (status == BGWH_STOPPED) return;
        if (status == BGWH_POSTMASTER_DIED) proc_exit(1);
        if (!terminated && read_clocks().steady >= deadline) {
            TerminateBackgroundWorker(handle);
            terminated = true;
        }
        pause(usecs_per_second, self.wait_event);
    }
}

void log_missing_worker(Launcher& self, std::int64_t now) {
    if (now < self.may_log) return;
    self.may_log = now + core::usecs_per_minute;
    ereport(LOG, (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
                  errmsg("no background worker is free to purge expired idempotency keys"),
                  errhint("You might need to increase max_worker_processes.")));
}

std::int64_t delay_after(const Task& task, std::int64_t delay) {
    switch (task.outcome) {
        case Outcome::purged:
            return core::next_delay(delay, naptime(), task.counts);
        case Outcome::postponed:
            return naptime();
        case Outcome::unreported:
        case Outcome::absent:
            break;
    }
    return core::absent_delay(delay, naptime());
}

void purge(Launcher& self, Database& database, const Clocks& now) {
    Task task = open_task(database.oid, now);
    auto worker = worker_named("idem purger", "idem_purger_main", BGW_NEVER_RESTART);
    worker.bgw_main_arg = Int32GetDatum(task.number);
    worker.bgw_notify_pid = MyProcPid;
    BackgroundWorkerHandle* handle = nullptr;
    if (!RegisterDynamicBackgroundWorker(&worker, &handle)) {
        self.back_off = core::back_off(self.back_off);
        self.quiet = now.steady + self.back_off;
        return log_missing_worker(self, now.steady);
    }
    self.back_off = 0;
    pgstat_report_activity(STATE_RUNNING, psprintf("idem: purging database %u", database.oid));
    wait_for(self, handle);
    pfree(handle);
    task = find_task(task.number);
    database.delay = delay_after(task, database.delay);
    database.due = read_clocks().steady + database.delay;
}

// Does what is due, and returns the time when the next thing is due.
std::int64_t run_once(Launcher& self) {
    const Clocks now = read_clocks();
    if (!clocks_are_sound(self, now)) return self.quiet;
    if (pg::guc::purge_naptime == 0) return now.steady + longest_pause;
    follow_naptime(self, now.steady);
    if (now.steady >= self.next_round) read_databases(self, now.steady);
    if (now.steady < self.quiet) return self.quiet;
    Database* database = first_due(self);
    if (database == nullptr) return self.next_round;
    if (database->due > now.steady) return std::min(database->due, self.next_round);
    purge(self, *database, now);
    return now.steady;
}

}  // namespace

void register_launcher() {
    constexpr int restart_after_seconds = 5;
    if (IsBinaryUpgrade) return;
    auto worker = worker_named("idem launcher", "idem_launcher_main", restart_after_seconds);
    RegisterBackgroundWorker(&worker);
}

extern "C" PGDLLEXPORT void idem_launcher_main(Datum);
void idem_launcher_main(Datum) {
    catch_signals();
    BackgroundWorkerInitializeConnection(nullptr, nullptr, 0);
    Launcher self{};
    self.databases.create("idem databases", 64, TopMemoryContext);
    self.trusted = read_clocks();
    self.wait_event = pg::compat::wait_event("IdemLauncherMain");
    MemoryContext context =
        AllocSetContextCreate(TopMemoryContext, "idem launcher", ALLOCSET_DEFAULT_SIZES);
    for (;;) {
        MemoryContextSwitchTo(context);
        const std::int64_t again = run_once(self);
        MemoryContextReset(context);
        const std::int64_t left = again - read_clocks().steady;
        if (left > 0) {
            pgstat_report_activity(
                STATE_IDLE, psprintf("idem: %ld database(s), none due", self.databases.size()));
            pause(std::min(left, longest_pause), self.wait_event);
        }
        if (ProcDiePending) proc_exit(1);
        CHECK_FOR_INTERRUPTS();
    }
}

}  // namespace idem::worker
