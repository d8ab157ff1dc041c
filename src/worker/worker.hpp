// The worker: deletes expired records in every database that has the extension.
//
// One launcher, started with the server, connects to no database. It starts one purge worker at a
// time, which connects to one database, works there for two seconds at most and ends: so nobody who
// wants to drop the database waits for long. How often a database is visited is core/pacing's to
// say. Both can be killed or terminated at any time: a worker holds nothing but its batch, and the
// postmaster starts the launcher again.
#pragma once

#include "pg/server.hpp"

namespace idem::worker {

// When preloading: has the postmaster start the launcher, once recovery is over. Not in a binary
// upgrade.
void register_launcher();

// What both processes begin with.
void catch_signals();

// Sleeps for so many microseconds, or until somebody sets the latch; follows interrupts and a
// changed configuration. A termination ends the process without a word.
void sleep(std::int64_t usecs, std::uint32_t wait_event);

}  // namespace idem::worker
