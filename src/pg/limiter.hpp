// claims_per_minute: one token bucket for each tenant of a limited scope, in shared memory.
//
// Buckets lie in a hash table of a fixed size, idem.limited_tenants. Its chains are spread over
// partitions, each under an LWLock that is held for one look at one chain: a tenant at its limit is
// refused under the lock that a grant takes, and holds nobody else up. Order of locks: the evicting
// lock, then one partition; the free list's spinlock last; never two partitions.
//
// A bucket whose time has come says nothing any more and gives way when the table is full. When no
// bucket can, a tenant without one is refused until the first can: the limit bounds what is stored,
// and so must not be passed by those who come with many tenants. Nothing is kept over a restart:
// every bucket is full again.
#pragma once

#include "pg/server.hpp"

namespace idem::pg {

struct Admission {
    bool admitted;
    std::int64_t retry_after;  // microseconds; how long to wait when not admitted
};

// False on a server that has not preloaded the library: there is nothing to count with.
bool limits_available();

// Charges one new claim, which is not given back when the transaction rolls back. Only with
// limits_available(). per_minute is at least 1.
Admission admit(std::int32_t scope_id, std::string_view tenant, std::int32_t per_minute,
                TimestampTz now);

inline constexpr int limiter_locks = 65;
Size limiter_size();
void attach_limiter(void* memory, LWLockPadded* locks, bool found);

}  // namespace idem::pg
