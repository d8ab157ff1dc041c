// The purger's step: a clock hand over the blocks of the record table.
//
// There is no index on expiry, so that a claim pays nothing for it; the sweep reads the heap in
// order, a bounded stretch at a time, and keeps its hand in a table. It takes no key lock: it
// deletes without waiting, and passes over every row that anybody else is at. Reads with
// SnapshotSelf: the newest committed rows, without predicate locks.
//
// Records of a dropped scope go too. Which scopes were dropped is noted in a table; a scope whose
// row has not arrived yet, from a dump or by replication, is not among them. In installations that
// await ALTER EXTENSION UPDATE it is inferred, once a sweep for each id and after a row that bears
// it was seen: a scope that was created since is not mistaken for a dropped one.
//
// Where the records arrive by subscription the step deletes nothing: the publisher purges, and its
// deletes are replicated. The subscription may lag, and an update of a row that has gone is lost,
// and the key with it.
//
// What logical replication asks of idem's tables. Rows are written past the executor, which refuses
// an update or delete that cannot be published, because it would stop every subscription: so
// compat::update_tuple() and delete_row() make the executor's check.
#pragma once

#include "pg/server.hpp"

namespace idem::pg {

struct SweepLimits {
    std::int64_t records;  // to delete
    BlockNumber blocks;    // to read
};

struct Swept {
    std::int64_t seen;     // records read
    std::int64_t deleted;  // of them
    BlockNumber blocks;    // read to the end
    BlockNumber table;     // blocks there are
    BlockNumber hand;      // where the next step begins
    bool subscribed;       // nothing was done: the publisher purges
};

// Deletes records that expired by now or whose scope was dropped, within the limits, visiting each
// block at most once. Part of the caller's transaction, which must have an active snapshot (for
// what is stored out of line).
Swept sweep_step(TimestampTz now, const SweepLimits& limits);

// The block at which the next step begins, as far as that is kept.
BlockNumber next_block();

// Whether an update of the table can be published, or need not be: what CheckCmdReplicaIdentity()
// raises about, as a question, for a table that can do without the update.
bool may_publish_update(Relation relation);

// Whether a subscription of this database, enabled or not, writes the table. Its rows are then the
// publisher's, who may still change what has expired here: the subscription may lag behind.
bool is_subscribed(Relation relation);

}  // namespace idem::pg
