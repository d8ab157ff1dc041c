// claims_per_minute: one token bucket per tenant of a limited scope, in shared memory.
//
// The buckets are a TenantTable. A claim that exceeds the limit is refused under the same lock as
// one that is admitted, and delays no other tenant. The evicting lock comes before those of the
// table.
//
// A bucket that has filled up again carries no information and can be evicted when the table is
// full. When none can, a tenant without a bucket is refused until the first can: the limit bounds
// what is stored, so a client must not pass it by inventing tenants. Nothing is kept over a
// restart: every bucket is full again.
#pragma once

#include "pg/server.hpp"

namespace idem::pg {

struct Admission {
    bool admitted;
    std::int64_t retry_after;  // microseconds until a retry makes sense, when not admitted
};

// False on a server that has not preloaded the library: no claims are counted.
bool limits_available();

// Charges one new claim. A rollback does not refund it. Only if limits_available(). per_minute is
// at least 1.
Admission admit(std::int32_t scope_id, std::string_view tenant, std::int32_t per_minute,
                TimestampTz now);

inline constexpr int limiter_locks = 65;
Size limiter_size();
void attach_limiter(void* memory, LWLockPadded* locks, bool found);

}  // namespace idem::pg
