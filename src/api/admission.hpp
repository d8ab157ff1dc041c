// What bounds the number of new records: the scope's claims_per_minute, of each tenant.
//
// A scope's rules for keys that have no record. Whoever retries an operation that has one is always
// answered, however old or weak its key.
#pragma once

#include "pg/scope.hpp"
#include "pg/server.hpp"

namespace idem::api {

// Raises 55000 where a limit could not be kept.
void require_limits_available();

// Charges a new claim to its tenant. Returns 0 when it is admitted, otherwise how long to wait, in
// microseconds. A server that came to the scope without shared memory (a restored dump) admits and
// warns, once a session: to refuse every claim would be the greater harm.
std::int64_t charge_claim(const pg::Scope& scope, std::string_view tenant, TimestampTz now);


// Whether the scope refuses the key because the time in it is longer ago than the TTL, so that its
// record may have come and gone, or too far ahead. ttl is the claim's, in microseconds.
bool is_out_of_memory(const pg::Scope& scope, std::string_view key, TimestampTz now,
                      std::int64_t ttl);

// Raises ID010 for such a key.
[[noreturn]] void refuse_out_of_memory(std::string_view key);

// Raises ID007, or warns, or does nothing, as the scope says.
void check_strength(const pg::Scope& scope, std::string_view key);

}  // namespace idem::api
