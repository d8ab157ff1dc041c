#include "pg/limiter.hpp"

#include "core/rate.hpp"
#include "pg/tenant_table.hpp"

namespace idem::pg {
namespace {

using Buckets = TenantTable<core::Bucket>;
static_assert(limiter_locks == Buckets::partitions + 1);

// In shared memory: this, then the buckets.
struct Shared {
    pg_atomic_uint64 none_idle_before;  // the result of the last vain search for an idle bucket
    std::uint32_t hand;                 // the partition to evict from next; under the evicting lock
};

constinit Shared* shared = nullptr;
constinit Buckets buckets{};
constinit LWLock* evicting_lock = nullptr;

struct Eviction {
    bool freed = false;
    TimestampTz first_idle = PG_INT64_MAX;  // when the first of the remaining buckets will be idle
};

void evict_from(std::uint32_t partition, TimestampTz now, Eviction& eviction) {
    buckets.prune(partition, [&](Oid, std::int32_t, core::Bucket& bucket) {
        core::cap_arrival(bucket, now);
        if (core::is_idle(bucket, now)) {
            eviction.freed = true;
            return true;
        }
        const TimestampTz idle = bucket.arrival + (bucket.fraction > 0 ? 1 : 0);
        eviction.first_idle = std::min(eviction.first_idle, idle);
        return false;
    });
}

// Searches one partition after another until one had an idle bucket. One backend at a time: the
// others find what it freed, or learn from it how long there is nothing to free.
void search_idle(TimestampTz now) {
    LWLockAcquire(evicting_lock, LW_EXCLUSIVE);
    Eviction eviction;
    for (std::uint32_t i = 0; i < Buckets::partitions && !eviction.freed; ++i) {
        shared->hand = (shared->hand + 1) % Buckets::partitions;
        evict_from(shared->hand, now, eviction);
    }
    const TimestampTz until = eviction.freed ? PG_INT64_MIN : eviction.first_idle;
    pg_atomic_write_u64(&shared->none_idle_before, static_cast<std::uint64_t>(until));
    LWLockRelease(evicting_lock);
}

// How long nothing in the full table can be evicted; 0 when a search may succeed.
std::int64_t full_for(TimestampTz now) {
    const auto until = static_cast<TimestampTz>(pg_atomic_read_u64(&shared->none_idle_before));
    if (until <= now || until > now + 2 * core::usecs_per_minute)
        return 0;  // passed, or the clock was set back
    return until - now;
}

}  // namespace

bool limits_available() {
    return buckets.available();
}

Admission admit(std::int32_t scope_id, std::string_view tenant, std::int32_t per_minute,
                TimestampTz now) {
    Assert(per_minute >= 1);
    const TenantKey key = buckets.key(scope_id, tenant);
    for (;;) {
        LWLockAcquire(buckets.lock_of(key), LW_EXCLUSIVE);
        std::uint32_t entry = buckets.find(key);
        if (entry == Buckets::none) entry = buckets.add(key);
        const std::int64_t wait =
            entry == Buckets::none ? 0 : core::charge(buckets.value(entry), per_minute, now);
        LWLockRelease(buckets.lock_of(key));
        if (entry != Buckets::none) return {wait == 0, wait};

        if (full_for(now) == 0) search_idle(now);
        if (const std::int64_t full = full_for(now); full > 0) return {false, full};
        CHECK_FOR_INTERRUPTS();
    }
}

Size limiter_size() {
    return add_size(MAXALIGN(sizeof(Shared)), Buckets::size());
}

void attach_limiter(void* memory, LWLockPadded* locks, bool found) {
    shared = static_cast<Shared*>(memory);
    buckets.attach(static_cast<char*>(memory) + MAXALIGN(sizeof(Shared)), locks, found);
    evicting_lock = &locks[Buckets::partitions].lock;
    if (found) return;
    shared->hand = 0;
    pg_atomic_init_u64(&shared->none_idle_before, static_cast<std::uint64_t>(PG_INT64_MIN));
}

}  // namespace idem::pg
