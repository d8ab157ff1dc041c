// What of a response must not be stored: the members on a scope's list.
#pragma once

#include "pg/path_list.hpp"
#include "pg/server.hpp"

namespace idem::pg {

// The response without the members that the paths name; the very same when there are none in it.
Jsonb* redact(Jsonb* response, PathList paths);

}  // namespace idem::pg
