// The worker: deletes expired records in every database that has the extension.
//
// One launcher starts with the server. It starts one purge worker at a time, which connects to one
// database, works there for some seconds and exits, so that a DROP DATABASE does not wait for long.
// Both processes can be killed or terminated at any time (src/README.md, "The worker").
//
// There is one task at a time, in shared memory under a spinlock. The launcher opens it, and the
// worker reports on it. Tasks are numbered, so that the report of a worker whose launcher has died
// is ignored.
#pragma once

#include "core/pacing.hpp"
#include "pg/server/postgres.hpp"

namespace idem::worker {

// Has the postmaster start the launcher when recovery has ended. Only for a preloaded library, and
// not during a binary upgrade.
void register_launcher();

void catch_signals();

// Waits for the given microseconds, or until the latch is set. Processes interrupts and reloads a
// changed configuration. Exits the process silently if it is to be terminated.
void pause(std::int64_t usecs, std::uint32_t wait_event);

core::Clocks read_clocks();

enum class Outcome {
    unreported,  // the worker failed, or was killed
    absent,      // no extension is in this database
    purged,      // the counts say what was found
    postponed,   // the clocks disagree, or another transaction is rebuilding the tables
};

struct Task {
    std::int32_t number;
    Oid database;
    core::Clocks clocks;  // as the launcher trusts them
    Outcome outcome;
    core::PurgeCounts counts;
};

// Makes this the task, with a new number.
Task open_task(Oid database, const core::Clocks& clocks);

// The task with this number; its database is InvalidOid when a newer task was opened.
Task find_task(std::int32_t number);

void report_task(const Task& task);

Size task_size();
void attach_task(void* memory, LWLockPadded* locks, bool found);

}  // namespace idem::worker
