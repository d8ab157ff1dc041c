// One step of the purge worker: a stretch of the blocks of the record tables.
//
// There is no index on the expiry, so that a claim pays nothing for it. The purge reads the heaps
// in block order, idem.record first and the other record tables by their OIDs, a bounded stretch
// per step, and keeps its position (the next block) in a table. It takes no key locks: it deletes
// without waiting and skips every row that another transaction has locked or is changing. It reads
// with SnapshotSelf: the newest committed rows, without predicate locks.
//
// The step waits for the lock on idem.record only. Any other table that is locked, by ALTER TABLE
// or VACUUM FULL, it leaves out: one table must not hold up the purge of a hundred. A table in
// which it changes nothing is unlocked at once.
//
// A step also purges records of dropped scopes, and removes the answers that their scopes do not
// keep any more, except from a table that must not be rewritten (pg/server/owner).
//
// One bad row or table does not stop the purge of the database: see "The worker" in src/README.md.
// What was passed over is noted with its block beside the position, until the block has been read
// without an error.
#pragma once

#include "pg/store/record_tables.hpp"

namespace idem::pg {

struct PurgeLimits {
    std::int64_t records;  // to purge
    std::int64_t blocks;   // to read
    // The time that one pass over a stretch of a table may take, and after which no other stretch
    // begins, in milliseconds; 0: the session's own limits hold. For a process without a
    // statement_timeout.
    int time_limit_ms = 0;
    // Where to begin if an open transaction has purged, which keeps the position to itself.
    std::optional<RecordBlock> otherwise_from = std::nullopt;
};

struct PurgeResult {
    std::int64_t seen;        // records read
    std::int64_t purged;      // records deleted, or whose answer was removed
    std::int64_t blocks;      // blocks read to the end
    std::int64_t all_blocks;  // in the tables that are not left out
    RecordBlock next;         // where the next step begins
    bool subscribed;          // nothing was deleted: a publisher purges, and all else is empty
};

// Deletes records that expired by now or whose scope was dropped, and removes answers that are kept
// no longer, within the limits, reading each block at most once. Part of the caller's transaction,
// which must have an active snapshot (to delete values that are stored out of line).
PurgeResult purge_step(TimestampTz now, const PurgeLimits& limits);

// Where the purge has passed over rows of the table, for the first time, and the error's SQLSTATE;
// nothing on a standby.
struct PassedOver {
    RecordBlock block;
    const char* sqlstate;  // palloc'd
};
std::optional<PassedOver> passed_over(Oid table);

}  // namespace idem::pg
