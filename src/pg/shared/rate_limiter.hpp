// claims_per_minute: one token bucket for each tenant of a limited scope, in a hash table in shared
// memory.
//
// As in pg_stat_statements, one LWLock guards the table: it is held shared to charge a bucket,
// which has a spinlock of its own, and exclusive to add or remove buckets. Database, scope and
// tenant are kept in full, so that no two tenants ever share a bucket.
//
// A tenant without a bucket is refused when there is no room for one: the limit bounds what is
// stored, so a client must not pass it by inventing tenants. Nobody else is refused for that. As in
// the shared buffers of a network switch, nobody gets more than what it leaves to others: a
// database stops when it has as many buckets as are free, and each of its scopes has what is free
// beyond the database's and its own. A scope alone gets a third of all, and leaves two.
//
// A bucket that has filled up again carries no information: when a scope has no room, all of these
// are removed. Nothing is kept over a restart: every bucket is full again.
#pragma once

#include "pg/server/postgres.hpp"

namespace idem::pg {

// What became of a charge: admitted, or refused, with the microseconds until a retry makes sense.
struct Charge {
    bool has_room = true;  // for a bucket of the tenant
    std::int64_t wait = 0;

    bool is_refused() const { return wait > 0; }
};

// Charges one new claim. A rollback does not refund it. Only if the library is preloaded.
// per_minute is at least 1.
Charge charge_bucket(std::int32_t scope_id, std::string_view tenant, std::int32_t per_minute,
                     TimestampTz now);

// How many tenants of a scope have buckets, and how many more could get one now.
struct Room {
    std::int32_t taken;
    std::int32_t left;
};

Room room_of(std::int32_t scope_id);

inline constexpr int limiter_locks = 1;
Size limiter_size();
Size limiter_table_size();
void attach_limiter(void* memory, LWLockPadded* locks, bool found);

}  // namespace idem::pg
