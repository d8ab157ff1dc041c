// idem's shared memory, which exists only with shared_preload_libraries = 'idem'.
//
// There is one piece per user. It is requested when the postmaster starts and set up once, before
// any backend runs, and again after a crash. Each piece brings its LWLocks.
#pragma once

#include "pg/server.hpp"

namespace idem::pg {

// Installs the server's hooks for shared memory, when preloading.
void init_shared_memory();

}  // namespace idem::pg
