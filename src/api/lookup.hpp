// What idem.lookup() tells of a key, for functions that return the same.
#pragma once

#include "pg/boundary.hpp"
#include "pg/record.hpp"
#include "pg/scope.hpp"

namespace idem::api {

// The columns of the type idem.lookup_result.
inline constexpr int lookup_columns = 14;
using LookupRow = pg::Row<lookup_columns>;

// Waits for the operation's end for that many microseconds at most.
LookupRow look_up(const pg::KeyName& name, const pg::Scope& scope, std::int64_t wait);

}  // namespace idem::api
