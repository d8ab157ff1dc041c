// The rules for keys that have no record: not stale, not weak, and not one too many.
//
// They do not apply to a key that has a record: a retry is always answered, however old or weak its
// key is.
#pragma once

#include "pg/shared/rate_limiter.hpp"
#include "pg/store/scope.hpp"

namespace idem::api {

// Raises 54000 if this transaction holds as many key locks as idem.max_open_claims allows.
void check_open_claims(std::int32_t scope_id);

// How long every record is kept at least, in microseconds: as short a ttl as a claim may pass.
// Where stale keys are rejected, the age of a key is compared with it, whatever ttl its claim
// passes, because another claim of the key may have passed a shorter one.
std::int64_t least_ttl(const pg::Scope& scope);

// The scope's rules for a new key. Both functions count what they refuse.

// Whether the time inside the key is longer ago than that, so that a record of the key may have
// existed and expired, or too far in the future.
bool is_stale_key(const pg::Scope& scope, std::string_view key, TimestampTz now);

// Charges the tenant for a key. For a weak key: raises ID007, warns or does nothing, depending on
// the scope's weak_keys.
pg::Charge charge_new_key(const pg::Scope& scope, std::string_view tenant, std::string_view key,
                          TimestampTz now);

[[noreturn]] void refuse_limited(const pg::Scope& scope, const pg::Charge& charge);

// Both, for a record with the scope's TTL. Raises ID010 or ID009, and ID013 without a tenant that
// the scope requires.
void check_new_key(const pg::Scope& scope, std::string_view tenant, std::string_view key,
                   TimestampTz now);

[[noreturn]] void refuse_stale_key(std::string_view key);

}  // namespace idem::api
