// The worker: deletes expired records in every database that has the extension.
//
// One launcher starts with the server and connects to no database. It starts one purge worker at a
// time, which connects to one database, works there for at most two seconds and exits, so that a
// DROP DATABASE does not wait for long. core/pacing decides how often a database is visited. Both
// processes can be killed or terminated at any time: a worker holds only its batch, and the
// postmaster restarts the launcher.
#pragma once

#include "pg/server.hpp"

namespace idem::worker {

// Has the postmaster start the launcher when recovery has ended. Only for a preloaded library, and
// not during a binary upgrade.
void register_launcher();

// Either process, as it is registered with the postmaster.
BackgroundWorker worker_named(const char* name, const char* function, int restart_time);

// Installs the signal handlers of both processes.
void catch_signals();

// Sleeps for the given microseconds, or until the latch is set. Processes interrupts and reloads a
// changed configuration. Exits the process silently if it is to be terminated.
void sleep(std::int64_t usecs, std::uint32_t wait_event);

}  // namespace idem::worker
