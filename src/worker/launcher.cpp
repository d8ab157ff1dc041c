// The launcher: chooses the database to visit next and starts the purge worker for it.
//
// It reads pg_database once per round, remembers when each database is due, and waits for its one
// worker. It measures time by the steady clock, which cannot be set. If the time of day has not
// kept step with that clock, it skips a round.
#include "core/pacing.hpp"
#include "pg/compat.hpp"
#include "pg/guc.hpp"
#include "pg/hash_table.hpp"
#include "pg/stats.hpp"
#include "pg/visit.hpp"
#include "worker/worker.hpp"

namespace idem::worker {
namespace {

using core::Clocks;
using core::usecs_per_second;

// A worker that takes longer, perhaps because it waits for a lock on its database, is terminated.
constexpr std::int64_t patience = 20 * usecs_per_second;
// The clocks are compared at least this often.
constexpr std::int64_t longest_sleep = 60 * usecs_per_second;
// DATCONNLIMIT_INVALID_DB, which older minor versions do not define: a DROP DATABASE was
// interrupted.
constexpr std::int32_t invalid_database = -2;

struct Database {
    Oid oid;  // the hash key
    std::int64_t nap;
    std::int64_t due;  // by the steady clock, as are all times here
    std::uint64_t round;
};

struct Launcher {
    pg::HashTable<Oid, Database> databases;
    std::uint64_t round;
    std::int64_t next_round;
    std::int64_t naptime;  // the setting from which the times below were computed
    Clocks trusted;        // the last readings that agreed
    std::int64_t quiet;    // no visits before this time
    std::int64_t back_off;
    std::int64_t may_log;  // no log line about missing workers before this time
    std::uint32_t wait_event;
};

std::int64_t naptime() {
    return std::int64_t{pg::guc::purge_naptime} * 1000;
}

bool is_visited(const FormData_pg_database& database) {
    return database.datallowconn && !database.datistemplate &&
           database.datconnlimit != invalid_database;
}

void note_database(Launcher& self, Oid oid, std::int64_t now) {
    bool found;
    Database* database = self.databases.enter(oid, found);
    if (!found) {
        database->nap = naptime();
        database->due = now;
    }
    database->round = self.round;
}

// Forgets the databases that are not in pg_database any more.
void forget_databases(Launcher& self) {
    self.databases.for_each([&self](const Database& database) {
        if (database.round == self.round) return;
        self.databases.remove(database.oid);
    });
}

// The caller has read the scopes before pg_database, so a database that is missing there has been
// dropped.
void forget_statistics(std::span<const pg::ScopeIdentity> counted, const List* existing) {
    for (const pg::ScopeIdentity& scope : counted)
        if (!list_member_oid(existing, scope.database)) pg::give_up_stats(scope);
}

void read_databases(Launcher& self, std::int64_t now) {
    MemoryContext context = CurrentMemoryContext;
    ++self.round;
    pgstat_report_activity(STATE_RUNNING, "idem: reading pg_database");
    SetCurrentStatementStartTimestamp();
    StartTransactionCommand();
    (void)GetTransactionSnapshot();
    const auto counted = pg::counted_scopes();
    List* existing = NIL;
    Relation relation = table_open(DatabaseRelationId, AccessShareLock);
    TableScanDesc scan = table_beginscan_catalog(relation, 0, nullptr);
    while (HeapTuple tuple = heap_getnext(scan, ForwardScanDirection)) {
        const auto* database = reinterpret_cast<const FormData_pg_database*>(GETSTRUCT(tuple));
        existing = lappend_oid(existing, database->oid);
        if (is_visited(*database)) note_database(self, database->oid, now);
    }
    table_endscan(scan);
    table_close(relation, AccessShareLock);
    forget_databases(self);
    forget_statistics(counted, existing);
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
        database.nap = self.naptime;
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

BackgroundWorkerHandle* start_worker(const pg::Visit& visit) {
    auto worker = worker_named("idem purger", "idem_purger_main", BGW_NEVER_RESTART);
    worker.bgw_main_arg = Int32GetDatum(visit.number);
    worker.bgw_notify_pid = MyProcPid;
    BackgroundWorkerHandle* handle = nullptr;
    return RegisterDynamicBackgroundWorker(&worker, &handle) ? handle : nullptr;
}

void wait_for(Launcher& self, BackgroundWorkerHandle* handle) {
    const std::int64_t deadline = pg::read_clocks().steady + patience;
    bool terminated = false;
    for (;;) {
        pid_t pid;
        const BgwHandleStatus status = GetBackgroundWorkerPid(handle, &pid);
        if (status == BGWH_STOPPED) return;
        if (status == BGWH_POSTMASTER_DIED) proc_exit(1);
        if (!terminated && pg::read_clocks().steady >= deadline) {
            TerminateBackgroundWorker(handle);
            terminated = true;
        }
        sleep(usecs_per_second, self.wait_event);
    }
}

void log_missing_worker(Launcher& self, std::int64_t now) {
    if (now < self.may_log) return;
    self.may_log = now + core::usecs_per_minute;
    ereport(LOG, (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
                  errmsg("no background worker is free to purge expired idempotency keys"),
                  errhint("You might need to increase max_worker_processes.")));
}

std::int64_t nap_after(const pg::Visit& visit, std::int64_t nap) {
    switch (visit.outcome) {
        case pg::VisitOutcome::swept:
            return core::next_nap(nap, naptime(), visit.counts);
        case pg::VisitOutcome::busy:
        case pg::VisitOutcome::clocks:
            return naptime();
        case pg::VisitOutcome::open:
        case pg::VisitOutcome::absent:
            break;
    }
    return core::absent_nap(nap, naptime());
}

void visit(Launcher& self, Database& database, const Clocks& now) {
    pg::Visit visit = pg::open_visit(database.oid, now);
    BackgroundWorkerHandle* handle = start_worker(visit);
    if (handle == nullptr) {
        self.back_off = core::back_off(self.back_off);
        self.quiet = now.steady + self.back_off;
        return log_missing_worker(self, now.steady);
    }
    self.back_off = 0;
    pgstat_report_activity(STATE_RUNNING, psprintf("idem: visiting database %u", database.oid));
    wait_for(self, handle);
    pfree(handle);
    visit = pg::find_visit(visit.number);
    database.nap = nap_after(visit, database.nap);
    database.due = pg::read_clocks().steady + database.nap;
}

// Does what is due, and returns the time when the next thing is due.
std::int64_t run_once(Launcher& self) {
    const Clocks now = pg::read_clocks();
    if (!clocks_are_sound(self, now)) return self.quiet;
    if (pg::guc::purge_naptime == 0) return now.steady + longest_sleep;
    follow_naptime(self, now.steady);
    if (now.steady >= self.next_round) read_databases(self, now.steady);
    if (now.steady < self.quiet) return self.quiet;
    Database* database = first_due(self);
    if (database == nullptr) return self.next_round;
    if (database->due > now.steady) return std::min(database->due, self.next_round);
    visit(self, *database, now);
    return now.steady;
}

void rest(const Launcher& self, std::int64_t usecs) {
    char text[64];
    snprintf(text, sizeof text, "idem: %ld databases, none is due", self.databases.size());
    pgstat_report_activity(STATE_IDLE, text);
    sleep(usecs, self.wait_event);
}

[[noreturn]] void run() {
    Launcher self{};
    self.databases.create("idem databases", 64, TopMemoryContext);
    self.trusted = pg::read_clocks();
    self.wait_event = pg::compat::wait_event("IdemLauncherMain");
    MemoryContext context =
        AllocSetContextCreate(TopMemoryContext, "idem launcher", ALLOCSET_DEFAULT_SIZES);
    for (;;) {
        MemoryContextSwitchTo(context);
        const std::int64_t again = run_once(self);
        MemoryContextReset(context);
        const std::int64_t left = again - pg::read_clocks().steady;
        if (left > 0) rest(self, std::min(left, longest_sleep));
        if (ProcDiePending) proc_exit(1);
        CHECK_FOR_INTERRUPTS();
    }
}

}  // namespace
}  // namespace idem::worker

extern "C" {
PGDLLEXPORT void idem_launcher_main(Datum);
}

void idem_launcher_main(Datum) {
    idem::worker::catch_signals();
    BackgroundWorkerInitializeConnection(nullptr, nullptr, 0);
    idem::worker::run();
}
