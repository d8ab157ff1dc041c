// One visit of the purge worker to a database: what launcher and worker tell each other.
//
// A piece of shared memory under a spinlock. The launcher opens a visit, the worker reports to it;
// visits are numbered, so that a worker whose launcher has died reports to nobody.
#pragma once

#include "core/pacing.hpp"
#include "pg/server.hpp"

namespace idem::pg {

enum class Ending {
    open,    // not reported: the worker failed, was killed or could not connect
    swept,   // the counts say what was found
    absent,  // no extension in this database
    busy,    // somebody is rebuilding the tables
    clocks,  // the clocks disagree: nothing, or no more, was purged
};

struct Visit {
    std::int32_t number;
    Oid database;
    core::Clocks clocks;  // as the launcher trusts them
    Ending ending;
    core::VisitCounts counts;
};

// Numbers the visit and opens it.
Visit open_visit(Oid database, const core::Clocks& clocks);

// The visit of that number; its database is InvalidOid when it is over.
Visit find_visit(std::int32_t number);

void report_visit(const Visit& visit);

core::Clocks read_clocks();

Size visit_size();
void attach_visit(void* memory, LWLockPadded* locks, bool found);

}  // namespace idem::pg
