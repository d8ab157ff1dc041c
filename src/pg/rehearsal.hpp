// What idem.rehearse() observes of a call that it runs, and the errors that it raises within.
//
// Backend-local; no locking. Nothing is observed unless a rehearsal is under way, so that a call
// outside of one pays for a test of one flag.
#pragma once

#include "pg/server.hpp"

namespace idem::pg {

// Whether idem.rehearse() is at work in this backend. The flag is set within a subtransaction, and
// cleared after it, however it ends.
extern bool rehearsing;

// One run of a call. A step is a call of one of idem's functions that write.
struct Observed {
    List* steps;      // the functions' names, such as "idem.claim()", in the order of the calls
    int failing;      // the step that raises an error, from 1; 0: none
    bool failed;      // it has
    bool conflicted;  // a claim met a key of another request
};

void begin_rehearsal();
void end_rehearsal();

// Begins to observe a run. Names are collected in the current memory context.
void begin_run(int failing);

// Of the last run.
const Observed& observed();

void note_step(const char* call);

// For every function that writes, before it does anything.
inline void reach(const char* call) {
    if (rehearsing) [[unlikely]]
        note_step(call);
}

void note_conflict();

// The tables in which this subtransaction has changed rows, as texts such as
// "public.payment: 1 inserted". Changes that were rolled back do not count, nor do those of idem's
// own tables, of temporary tables and of system catalogs. Needs track_counts.
List* tables_written();

}  // namespace idem::pg
