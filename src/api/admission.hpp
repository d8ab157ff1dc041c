// The scope's rules for keys that have no record: not stale, not weak, and not one too many.
//
// They do not apply to a key that has a record: a retry is always answered, however old or weak its
// key is.
#pragma once

#include "pg/scope.hpp"
#include "pg/server.hpp"

namespace idem::api {

// Whether the scope refuses the key for the time inside it. That time is longer ago than the TTL,
// so that a record of the key may have existed and expired, or it lies too far in the future. ttl
// is the claim's, in microseconds.
bool is_stale_key(const pg::Scope& scope, std::string_view key, TimestampTz now, std::int64_t ttl);

// Raises ID010 for such a key.
[[noreturn]] void refuse_stale_key(std::string_view key);

// For a weak key: raises ID007, warns or does nothing, depending on the scope's weak_keys.
void check_strength(const pg::Scope& scope, std::string_view key);

// Raises 54000 if this transaction holds as many key locks as idem.max_open_claims allows.
void check_open_claims(std::int32_t scope_id);

// Charges a new claim to its tenant, for the scope's claims_per_minute. Returns 0 if the claim is
// admitted, otherwise the microseconds to wait. A server without shared memory of idem's, such as
// one that has restored a dump, admits the claim and warns once per session: refusing every claim
// would do more harm.
std::int64_t charge_claim(const pg::Scope& scope, std::string_view tenant, TimestampTz now);

// All these rules, for a record with the scope's TTL: raises the error of the one that is broken.
void check_new_key(const pg::Scope& scope, std::string_view tenant, std::string_view key,
                   TimestampTz now);

}  // namespace idem::api
