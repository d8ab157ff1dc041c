// idem's part of the server's shared memory: there only with shared_preload_libraries = 'idem'.
//
// One piece for each user of it, asked for when the postmaster starts and set up once, before any
// backend runs; again after a crash. Each piece brings its LWLocks.
#pragma once

#include "pg/server.hpp"

namespace idem::pg {

// Whether the library is being loaded by the postmaster, the only time to ask for shared memory.
bool preloading();

// Chains itself into the server's hooks, when preloading.
void init_shared_memory();

}  // namespace idem::pg
