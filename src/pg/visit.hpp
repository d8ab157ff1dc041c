// One visit of the purge worker to a database: what launcher and worker tell each other.
//
// A visit is a piece of shared memory under a spinlock. The launcher opens it, and the worker
// reports to it. Visits are numbered, so that the report of a worker whose launcher has died is
// ignored.
#pragma once

#include "core/pacing.hpp"
#include "pg/server.hpp"

namespace idem::pg {

enum class VisitOutcome {
    open,    // no report: the worker failed, was killed or could not connect
    swept,   // the counts say what was found
    absent,  // the extension is not in this database
    busy,    // another transaction is rebuilding the tables
    clocks,  // the clocks disagree: nothing, or nothing more, was purged
};

struct Visit {
    std::int32_t number;
    Oid database;
    core::Clocks clocks;  // as the launcher trusts them
    VisitOutcome outcome;
    core::VisitCounts counts;
};

// Numbers the visit and opens it.
Visit open_visit(Oid database, const core::Clocks& clocks);

// The visit with this number; its database is InvalidOid when a newer visit was opened.
Visit find_visit(std::int32_t number);

void report_visit(const Visit& visit);

core::Clocks read_clocks();

Size visit_size();
void attach_visit(void* memory, LWLockPadded* locks, bool found);

}  // namespace idem::pg
