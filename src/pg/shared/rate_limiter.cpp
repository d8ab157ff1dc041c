#include "pg/shared/rate_limiter.hpp"

#include "core/key.hpp"
#include "core/rate.hpp"
#include "pg/server/compat.hpp"
#include "pg/server/guc.hpp"
#include "pg/server/report.hpp"

namespace idem::pg {
namespace {

// Compared by its bytes, so what no member fills is zero.
struct BucketKey {
    std::uint64_t seed;  // random: clients cannot choose tenants that fall into one chain
    Oid database;
    std::int32_t scope_id;
    char tenant[core::max_tenant_bytes + 1];
};
static_assert(std::has_unique_object_representations_v<BucketKey>);

struct Entry {
    BucketKey key;
    slock_t mutex;  // of the bucket, under the shared lock
    core::Bucket bucket;
};

// In shared memory, beside the table.
struct Shared {
    std::uint64_t seed;
    TimestampTz next_search;  // until then, a full table stays full; under the exclusive lock
};

constinit Shared* shared = nullptr;
constinit HTAB* table = nullptr;
constinit LWLock* lock = nullptr;

BucketKey key_of(std::int32_t scope_id, std::string_view tenant) {
    Assert(tenant.size() <= core::max_tenant_bytes);
    BucketKey key{shared->seed, MyDatabaseId, scope_id, {}};
    std::copy(tenant.begin(), tenant.end(), key.tenant);
    return key;
}

Entry* search(const BucketKey& key, HASHACTION action) {
    return static_cast<Entry*>(hash_search(table, &key, action, nullptr));
}

bool is_full() {
    return hash_get_num_entries(table) >= guc::limited_tenants;
}

// Under the exclusive lock. While no bucket can be removed, no search is made; and in any case the
// next one waits for a microsecond for each bucket, so that searches take a few percent of the time
// at most.
void remove_idle(TimestampTz now) {
    TimestampTz first_idle = PG_INT64_MAX;
    HASH_SEQ_STATUS status;
    hash_seq_init(&status, table);
    while (auto* entry = static_cast<Entry*>(hash_seq_search(&status))) {
        core::cap_arrival(entry->bucket, now);
        if (core::is_idle(entry->bucket, now))
            (void)search(entry->key, HASH_REMOVE);
        else
            first_idle = std::min(first_idle, core::idle_from(entry->bucket));
    }
    const TimestampTz soonest = now + guc::limited_tenants;
    shared->next_search = is_full() ? std::max(first_idle, soonest) : soonest;
}

// How long a full table stays so. A time that is more than two minutes ahead is of a clock that was
// set back.
std::int64_t full_for(TimestampTz now) {
    const TimestampTz until = shared->next_search;
    return until <= now || until > now + 2 * core::usecs_per_minute ? 0 : until - now;
}

// Under the exclusive lock. NULL when there is no room.
Entry* find_or_add(const BucketKey& key, TimestampTz now) {
    if (Entry* entry = search(key, HASH_FIND)) return entry;
    if (is_full() && full_for(now) == 0) remove_idle(now);
    if (is_full()) return nullptr;
    Entry* entry = search(key, HASH_ENTER);
    SpinLockInit(&entry->mutex);
    entry->bucket = core::Bucket{};
    return entry;
}

std::int64_t charge(Entry& entry, std::int32_t per_minute, TimestampTz now) {
    SpinLockAcquire(&entry.mutex);
    const std::int64_t wait = core::charge(entry.bucket, per_minute, now);
    SpinLockRelease(&entry.mutex);
    return wait;
}

}  // namespace

std::int64_t charge_bucket(std::int32_t scope_id, std::string_view tenant, std::int32_t per_minute,
                           TimestampTz now) {
    Assert(per_minute >= 1);
    const BucketKey key = key_of(scope_id, tenant);
    LWLockAcquire(lock, LW_SHARED);
    Entry* entry = search(key, HASH_FIND);
    if (entry == nullptr) {
        LWLockRelease(lock);
        LWLockAcquire(lock, LW_EXCLUSIVE);
        entry = find_or_add(key, now);
    }
    const std::int64_t wait = entry != nullptr ? charge(*entry, per_minute, now)
                                               : std::max<std::int64_t>(full_for(now), 1);
    LWLockRelease(lock);
    return wait;
}

Size limiter_size() {
    return sizeof(Shared);
}

Size limiter_table_size() {
    return hash_estimate_size(guc::limited_tenants, sizeof(Entry));
}

void attach_limiter(void* memory, LWLockPadded* locks, bool found) {
    shared = static_cast<Shared*>(memory);
    lock = &locks->lock;
    table = compat::shared_hash<BucketKey, Entry>("idem_limiter buckets", guc::limited_tenants);
    if (found) return;
    if (!pg_strong_random(&shared->seed, sizeof shared->seed)) report::crypto_failure();
    shared->next_search = PG_INT64_MIN;
}

}  // namespace idem::pg
