// A scope's rules for keys that have no record. Whoever retries an operation that has one is always
// answered, however old or weak its key.
#pragma once

#include "pg/scope.hpp"
#include "pg/server.hpp"

namespace idem::api {

// Whether the scope refuses the key because the time in it is longer ago than the TTL, so that its
// record may have come and gone, or too far ahead. ttl is the claim's, in microseconds.
bool is_out_of_memory(const pg::Scope& scope, std::string_view key, TimestampTz now,
                      std::int64_t ttl);

// Raises ID010 for such a key.
[[noreturn]] void refuse_out_of_memory(std::string_view key);

// Raises ID007, or warns, or does nothing, as the scope says.
void check_strength(const pg::Scope& scope, std::string_view key);

}  // namespace idem::api
