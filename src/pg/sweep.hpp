// One step of the purge worker: the hand of a clock over the blocks of the record tables.
//
// There is no index on the expiry, so that a claim pays nothing for it. The sweep reads the heaps
// in block order, idem.record first and the other record tables by their OIDs, a bounded stretch
// per step, and keeps its hand (the next block) in a table. It takes no key locks: it deletes
// without waiting and skips every row that another transaction has locked or is changing. It reads
// with SnapshotSelf: the newest committed rows, without predicate locks.
//
// The step waits for the lock on idem.record only. Any other table that is locked, by ALTER TABLE
// or VACUUM FULL, it leaves out: one table must not hold up the purge of a hundred. A table in
// which it changes nothing is unlocked at once.
//
// A step also removes the answers that their scopes do not keep any more: it writes a new version
// of such a row, which counts like a deletion.
//
// Records of dropped scopes are purged too. A table notes which scopes were dropped; a scope whose
// row has not arrived yet, from a dump or by replication, is not among them.
//
// A table whose records arrive by subscription is left out: the publisher purges, and its deletes
// are replicated. The subscription may lag, and the update of a row that is missing here is lost,
// and with it the key.
#pragma once

#include "pg/record_tables.hpp"
#include "pg/server.hpp"

namespace idem::pg {

struct SweepLimits {
    std::int64_t records;  // to delete, or to remove the answer from
    std::int64_t blocks;   // to read
};

struct SweepResult {
    std::int64_t seen;        // records read
    std::int64_t deleted;     // records deleted
    std::int64_t erased;      // records whose answer was removed
    std::int64_t blocks;      // blocks read to the end
    std::int64_t all_blocks;  // in the tables that are not left out
    std::int64_t position;    // how many of them are before the next step
    bool subscribed;          // nothing was deleted: a publisher purges, and all else is empty
};

// Deletes records that expired by now or whose scope was dropped, and removes answers that are kept
// no longer, within the limits, reading each block at most once. Part of the caller's transaction,
// which must have an active snapshot (to delete values that are stored out of line).
SweepResult sweep_step(TimestampTz now, const SweepLimits& limits);

// The block at which the next step begins, if that is known, else 0. Its table may be gone; the
// step then begins at the next one.
RecordBlock next_block();

}  // namespace idem::pg
