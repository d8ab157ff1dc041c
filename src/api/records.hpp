// A record table as an argument.
#pragma once

#include "pg/server.hpp"

namespace idem::api {

// The table, or common_records if it is idem.record. Raises 42P01, 42809 or 42501 unless it is a
// record table.
Oid usable_records(Oid table);

}  // namespace idem::api
