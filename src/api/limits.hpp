// What bounds the number of new records: the scope's claims_per_minute, of each tenant.
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

}  // namespace idem::api
