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
// One bad row or table does not stop the purge of the database. Each stretch is read in a
// subtransaction, as the table's owner (pg/owner), within a time limit. If it fails, it is read
// once more, with a subtransaction for each row, unless it took too long. What fails then is passed
// over, in this round, and noted with its block beside the hand, until the block has been read
// without an error.
//
// A table that must not be rewritten (pg/owner) keeps its answers. Expired records are deleted.
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
    // The time that one table may take, in milliseconds; 0: the session's own limits hold. For a
    // process without a statement_timeout.
    int patience = 0;
};

struct SweepResult {
    std::int64_t seen;        // records read
    std::int64_t deleted;     // records deleted
    std::int64_t erased;      // records whose answer was removed
    std::int64_t blocks;      // blocks read to the end
    std::int64_t all_blocks;  // in the tables that are not left out
    bool subscribed;          // nothing was deleted: a publisher purges, and all else is empty
};

// Deletes records that expired by now or whose scope was dropped, and removes answers that are kept
// no longer, within the limits, reading each block at most once. Part of the caller's transaction,
// which must have an active snapshot (to delete values that are stored out of line).
SweepResult sweep_step(TimestampTz now, const SweepLimits& limits);

// Where the sweep has passed over rows of the table, for the first time, and the error's SQLSTATE;
// nothing on a standby.
struct PassedOver {
    RecordBlock block;
    const char* sqlstate;  // palloc'd
};
std::optional<PassedOver> passed_over(Oid table);

}  // namespace idem::pg
