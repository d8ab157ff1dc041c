// claims_per_minute: one token bucket for each tenant of a limited scope, in a hash table in shared
// memory.
//
// As in pg_stat_statements, one LWLock guards the table: it is held shared to charge a bucket,
// which has a spinlock of its own, and exclusive to add or remove buckets. Database, scope and
// tenant are kept in full, so that no two tenants ever share a bucket.
//
// A bucket that has filled up again carries no information: when the table is full, all of these
// are removed. When there are none, a tenant without a bucket is refused until the first can be:
// the limit bounds what is stored, so a client must not pass it by inventing tenants. Nothing is
// kept over a restart: every bucket is full again.
#pragma once

#include "pg/server/postgres.hpp"

namespace idem::pg {

// Charges one new claim, and returns 0; or refuses it, and returns the microseconds until a retry
// makes sense. A rollback does not refund it. Only if the library is preloaded. per_minute is at
// least 1.
std::int64_t charge_bucket(std::int32_t scope_id, std::string_view tenant, std::int32_t per_minute,
                           TimestampTz now);

inline constexpr int limiter_locks = 1;
Size limiter_size();
Size limiter_table_size();
void attach_limiter(void* memory, LWLockPadded* locks, bool found);

}  // namespace idem::pg
