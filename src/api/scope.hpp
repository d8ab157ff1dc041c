// What a new scope must satisfy, also one that comes from another server.
#pragma once

#include "pg/server.hpp"

namespace idem::api {

// Raises 22023 unless the name has 1 to 63 bytes.
void check_name(std::string_view name);

// The owner's role gets access to all keys of the scope. The caller must be able to become that
// role, as for ALTER ... OWNER TO.
void check_owner(Oid owner);

}  // namespace idem::api
