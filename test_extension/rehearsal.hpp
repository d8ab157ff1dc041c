// What idem_test.rehearse() observes of a call that it runs, and the errors that it raises within.
//
// Backend-local; no locking. Nothing is observed unless a rehearsal is under way.
#pragma once

#include "pg/open_claims.hpp"

namespace idem::testing {

// Whether idem_test.rehearse() is at work in this backend. The flag is set within a subtransaction,
// and cleared after it, however it ends.
extern bool rehearsing;

// One run of a call. A step is a call of one of idem's functions that write.
struct Observed {
    List* steps;      // the functions' names, such as "claim", in the order of the calls
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

// For every function that writes, before it does anything. Raises the error of the failing step.
void note_step(const char* function);

void note_conflict();

// What became of a number of claims.
struct ClaimTally {
    int completed = 0;
    int failed = 0;
    int released = 0;
    int open_atomic = 0;
    int open_leased = 0;

    int open() const { return open_atomic + open_leased; }
    int all() const { return completed + failed + released + open(); }
    bool operator==(const ClaimTally&) const = default;
};

// The newest claim of this transaction in any phase; NULL if there is none.
const pg::Claim* newest_claim();

// Of the claims that were made after the given one, or of all if it is NULL. Claims that were
// rolled back do not count.
ClaimTally claims_since(const pg::Claim* last);

// The tables in which this subtransaction has changed rows, as texts such as
// "public.payment: 1 inserted". Changes that were rolled back do not count, nor do those of idem's
// own tables, of temporary tables and of system catalogs. Needs track_counts.
List* tables_written();

}  // namespace idem::testing
