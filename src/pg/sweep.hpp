// The purger's step: a clock hand over the blocks of the record table.
//
// There is no index on expiry, so that a claim pays nothing for it; the sweep reads the heap in
// order, a bounded stretch at a time, and keeps its hand in a table. It takes no key lock: it
// deletes without waiting, and passes over every row that anybody else is at. Reads with
// SnapshotSelf: the newest committed rows, without predicate locks.
//
// Records of a dropped scope go too. Whether an id is a dropped scope's is asked once a sweep, and
// after a row that bears it was seen: a scope that was created since is not mistaken for one.
#pragma once

#include "pg/server.hpp"

namespace idem::pg {

// Deletes records that expired by now or whose scope was dropped, at most max_records, visiting
// each block at most once. Returns how many. Part of the caller's transaction.
std::int64_t sweep_expired(TimestampTz now, std::int64_t max_records);

}  // namespace idem::pg
