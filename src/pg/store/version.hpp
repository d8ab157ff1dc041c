// Whether this library is as new as the SQL objects in the database. An older one does not know
// what it would have to write: it refuses to, until the server or the session has loaded another.
//
// The version of the objects is kept per backend until the relation cache reports a change of
// idem.record or idem.scope, or idem_internal.begin_update() announces one.
#pragma once

#include <compare>

#include "pg/server/postgres.hpp"

namespace idem::pg {

extern const char* const library_version;  // in module.cpp

void forget_version();

// How the library compares with the objects, as the catalog has them now. Without the extension,
// they are equal.
std::strong_ordering library_order();

// For calls that write. Raises 55000 if the library is older.
void require_library();

}  // namespace idem::pg
