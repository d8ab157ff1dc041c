// The launcher: which database is visited next, and what comes of it.
//
// Reads pg_database once a round, remembers when each database is due, and waits for the one worker
// it has out. Time is measured by a clock that nobody sets; when the time of day has not kept step
// with it, a round is skipped.
#include "core/pacing.hpp"
#include "pg/compat.hpp"
#include "pg/guc.hpp"
#include "pg/report.hpp"
#include "pg/stats.hpp"
#include "pg/visit.hpp"
#include "worker/worker.hpp"

namespace idem::worker {
namespace {

using core::Clocks;
using core::usecs_per_second;

// A worker that takes so long, perhaps because somebody has locked its database, is sent home.
constexpr std::int64_t patience = 20 * usecs_per_second;
// The clocks are compared at least this often.
constexpr std::int64_t longest_sleep = 60 * usecs_per_second;
// DATCONNLIMIT_INVALID_DB, which older minor versions do not know: a DROP DATABASE was interrupted.
constexpr std::int32_t invalid_database = -2;

struct Database {
    Oid oid;  // the hash key
    std::int64_t nap;
    std::int64_t due;  // by the steady clock, as all times here
    std::uint64_t round;
};

struct Launcher {
    HTAB* databases;
    std::uint64_t round;
    std::int64_t next_round;
    std::int64_t naptime;  // that the times below were made with
    Clocks trusted;        // the last readings that agreed
    std::int64_t quiet;    // no visits before
    std::int64_t back_off;
    std::int64_t may_complain;  // no line about missing workers before
    std::uint32_t wait_event;
};

std::int64_t naptime() {
    return std::int64_t{pg::guc::purge_naptime} * 1000;
}

HTAB* new_databases() {
    HASHCTL control{};
    control.keysize = sizeof(Oid);
    control.entrysize = sizeof(Database);
    control.hcxt = TopMemoryContext;
    return hash_create("idem databases", 64, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

bool is_visited(const FormData_pg_database& database) {
    return database.datallowconn && !database.datistemplate &&
           database.datconnlimit != invalid_database;
}

void note_database(Launcher& self, Oid oid, std::int64_t now) {
    bool found;
    auto* database = static_cast<Database*>(hash_search(self.databases, &oid, HASH_ENTER, &found));
    if (!found) {
        database->nap = naptime();
        database->due = now;
    }
    database->round = self.round;
}

// Whoever is not in pg_database any more is forgotten.
void forget_databases(Launcher& self) {
    HASH_SEQ_STATUS status;
    hash_seq_init(&status, self.databases);
    while (auto* database = static_cast<Database*>(hash_seq_search(&status)))
        if (database->round != self.round)
            (void)hash_search(self.databases, &database->oid, HASH_REMOVE, nullptr);
}

// The scopes were noted before pg_database was read, so a database that is not in it is gone.
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

// A changed setting counts at once, also for whoever is napping.
void follow_naptime(Launcher& self, std::int64_t now) {
    if (naptime() == self.naptime) return;
    self.naptime = naptime();
    self.next_round = now;
    self.quiet = std::min(self.quiet, now + self.naptime);
    HASH_SEQ_STATUS status;
    hash_seq_init(&status, self.databases);
    while (auto* database = static_cast<Database*>(hash_seq_search(&status))) {
        database->nap = self.naptime;
        database->due = std::min(database->due, now + self.naptime);
    }
}

// The one that has been due for the longest; NULL when there is none.
Database* first_due(const Launcher& self) {
    Database* first = nullptr;
    HASH_SEQ_STATUS status;
    hash_seq_init(&status, self.databases);
    while (auto* database = static_cast<Database*>(hash_seq_search(&status)))
        if (first == nullptr || database->due < first->due) first = database;
    return first;
}

// False when the time of day has jumped: then there is nothing to be done for a round.
bool clocks_are_sound(Launcher& self, const Clocks& now) {
    const std::int64_t by = core::jump(self.trusted, now);
    const bool sound = core::agree(self.trusted, now);
    self.trusted = now;
    if (sound) return true;
    self.quiet = now.steady + std::max(naptime(), usecs_per_second);
    pg::report::clock_was_set(by);
    return false;
}

BackgroundWorkerHandle* start_worker(const pg::Visit& visit) {
    BackgroundWorker worker{};
    worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
    worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
    worker.bgw_restart_time = BGW_NEVER_RESTART;
    worker.bgw_main_arg = Int32GetDatum(visit.number);
    worker.bgw_notify_pid = MyProcPid;
    strlcpy(worker.bgw_name, "idem purger", BGW_MAXLEN);
    strlcpy(worker.bgw_type, "idem purger", BGW_MAXLEN);
    strlcpy(worker.bgw_library_name, "idem", BGW_MAXLEN);
    strlcpy(worker.bgw_function_name, "idem_purger_main", BGW_MAXLEN);
    BackgroundWorkerHandle* handle = nullptr;
    return RegisterDynamicBackgroundWorker(&worker, &handle) ? handle : nullptr;
}

void wait_for(Launcher& self, BackgroundWorkerHandle* handle) {
    const std::int64_t deadline = pg::read_clocks().steady + patience;
    bool sent_home = false;
    for (;;) {
        pid_t pid;
        const BgwHandleStatus status = GetBackgroundWorkerPid(handle, &pid);
        if (status == BGWH_STOPPED) return;
        if (status == BGWH_POSTMASTER_DIED) proc_exit(1);
        if (!sent_home && pg::read_clocks().steady >= deadline) {
            TerminateBackgroundWorker(handle);
            sent_home = true;
        }
        sleep(usecs_per_second, self.wait_event);
    }
}

void complain(Launcher& self, std::int64_t now) {
    if (now < self.may_complain) return;
    self.may_complain = now + core::usecs_per_minute;
    pg::report::no_free_worker();
}

std::int64_t nap_after(const pg::Visit& visit, std::int64_t nap) {
    switch (visit.ending) {
        case pg::Ending::swept:
            return core::next_nap(nap, naptime(), visit.counts);
        case pg::Ending::busy:
        case pg::Ending::clocks:
            return naptime();
        case pg::Ending::open:
        case pg::Ending::absent:
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
        return complain(self, now.steady);
    }
    self.back_off = 0;
    pgstat_report_activity(STATE_RUNNING, psprintf("idem: visiting database %u", database.oid));
    wait_for(self, handle);
    pfree(handle);
    visit = pg::find_visit(visit.number);
    database.nap = nap_after(visit, database.nap);
    database.due = pg::read_clocks().steady + database.nap;
}

// Does what is to be done now, and returns when there is something to be done again.
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
    snprintf(text, sizeof text, "idem: %ld databases, none is due",
             hash_get_num_entries(self.databases));
    pgstat_report_activity(STATE_IDLE, text);
    sleep(usecs, self.wait_event);
}

[[noreturn]] void run() {
    Launcher self{};
    self.databases = new_databases();
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
