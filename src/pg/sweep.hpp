// One step of the purge worker: the hand of a clock over the blocks of the record table.
//
// There is no index on the expiry, so that a claim pays nothing for it. The sweep reads the heap in
// block order, a bounded stretch per step, and keeps its hand (the next block) in a table. It takes
// no key locks: it deletes without waiting and skips every row that another transaction has locked
// or is changing. It reads with SnapshotSelf: the newest committed rows, without predicate locks.
//
// A step also removes the answers that their scopes do not keep any more: it writes a new version
// of such a row, which counts like a deletion.
//
// Records of dropped scopes are purged too. A table notes which scopes were dropped; a scope whose
// row has not arrived yet, from a dump or by replication, is not among them. In installations that
// await ALTER EXTENSION UPDATE it is inferred instead, once per id in each sweep and after a row
// with the id was read, so that a scope that was created since is not mistaken for a dropped one.
//
// Where the records arrive by subscription a step deletes nothing: the publisher purges, and its
// deletes are replicated. The subscription may lag, and the update of a row that is missing here is
// lost, and with it the key.
#pragma once

#include "pg/server.hpp"

namespace idem::pg {

struct SweepLimits {
    std::int64_t records;  // to delete, or to remove the answer from
    BlockNumber blocks;    // to read
};

struct SweepResult {
    std::int64_t seen;     // records read
    std::int64_t deleted;  // records deleted
    std::int64_t erased;   // records whose answer was removed
    BlockNumber blocks;    // blocks read to the end
    BlockNumber table;     // blocks in the table
    BlockNumber hand;      // where the next step begins
    bool subscribed;       // nothing was deleted: the publisher purges
};

// Deletes records that expired by now or whose scope was dropped, and removes answers that are kept
// no longer, within the limits, reading each block at most once. Part of the caller's transaction,
// which must have an active snapshot (to delete values that are stored out of line).
SweepResult sweep_step(TimestampTz now, const SweepLimits& limits);

// The block at which the next step begins, if that is known, else 0.
BlockNumber next_block();

}  // namespace idem::pg
