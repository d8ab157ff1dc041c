// Whether the extension is in this database: for the worker, who comes without being asked.
#pragma once

#include "pg/server.hpp"

namespace idem::pg {

enum class Installation { absent, busy, ready };

// Ready: the extension's own tables are here, as this library knows them, and locked as purging
// needs it until the transaction ends. Never waits: whoever drops, rebuilds or upgrades goes first.
Installation lock_installation();

}  // namespace idem::pg
