#include "pg/shared/rate_limiter.hpp"

#include "core/key.hpp"
#include "core/rate.hpp"
#include "pg/server/guc.hpp"
#include "pg/server/hash_table.hpp"
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

// Who has buckets: a scope, or as scope 0 all scopes of a database. Changed under the exclusive
// lock.
struct HolderKey {
    Oid database;
    std::int32_t scope_id;
};
static_assert(std::has_unique_object_representations_v<HolderKey>);

struct Occupant {
    HolderKey key;
    std::int32_t buckets;
    TimestampTz next_idle;  // when the first of them may be idle: until then, no search is made
};

// In shared memory, beside the tables.
struct Shared {
    std::uint64_t seed;
    TimestampTz next_search;  // of all scopes; under the exclusive lock
};

constinit Shared* shared = nullptr;
constinit HashTable<BucketKey, Entry> table;
constinit HashTable<HolderKey, Occupant> holders;
constinit LWLock* lock = nullptr;

// The holders of a bucket.
std::array<HolderKey, 2> holders_of(const BucketKey& key) {
    return {HolderKey{key.database, key.scope_id}, HolderKey{key.database, 0}};
}

void count_bucket(const BucketKey& key) {
    for (const HolderKey& holder_key : holders_of(key)) {
        bool found;
        Occupant* holder = holders.enter(holder_key, found);
        if (!found) *holder = {holder_key, 0, PG_INT64_MIN};
        ++holder->buckets;
    }
}

void remove_bucket(const BucketKey& key) {
    for (const HolderKey& holder_key : holders_of(key)) {
        Occupant* holder = holders.find(holder_key);
        Assert(holder != nullptr && holder->buckets > 0);
        if (--holder->buckets == 0) holders.remove(holder_key);
    }
    table.remove(key);
}

std::int32_t buckets_of(const HolderKey& key) {
    const Occupant* holder = holders.find(key);
    return holder == nullptr ? 0 : holder->buckets;
}

// Every bucket that a scope gets takes three from what it may still get: that one is no longer
// free, and the scope and its database have it.
Room room_of(const HolderKey& scope) {
    const auto free = guc::limited_tenants - static_cast<std::int32_t>(table.size());
    const std::int32_t taken = buckets_of(scope);
    const std::int32_t more = free - buckets_of({scope.database, 0}) - taken;
    return {taken, more <= 0 ? 0 : (more + 2) / 3};
}

// How long it is until then. A time that is more than two minutes ahead is of a clock that was set
// back.
std::int64_t time_to(TimestampTz until, TimestampTz now) {
    return until <= now || until > now + 2 * core::usecs_per_minute ? 0 : until - now;
}

// How long a scope without room stays so: no search is made while none of its own buckets can be
// removed.
std::int64_t full_for(const HolderKey& scope, TimestampTz now) {
    const Occupant* holder = holders.find(scope);
    const TimestampTz own = holder == nullptr ? PG_INT64_MIN : holder->next_idle;
    return std::max(time_to(own, now), time_to(shared->next_search, now));
}

// Under the exclusive lock. The next search waits for a microsecond for each bucket, so that
// searches take a few percent of the time at most.
void remove_idle(const HolderKey& scope, TimestampTz now) {
    TimestampTz first_idle = PG_INT64_MAX;
    table.for_each([&](Entry& entry) {
        core::cap_arrival(entry.bucket, now);
        if (core::is_idle(entry.bucket, now))
            remove_bucket(entry.key);
        else if (entry.key.database == scope.database && entry.key.scope_id == scope.scope_id)
            first_idle = std::min(first_idle, core::idle_from(entry.bucket));
    });
    shared->next_search = now + guc::limited_tenants;
    if (Occupant* holder = holders.find(scope)) holder->next_idle = first_idle;
}

// Under the exclusive lock. NULL when there is no room.
Entry* find_or_add(const BucketKey& key, TimestampTz now) {
    if (Entry* entry = table.find(key)) return entry;
    const HolderKey scope{key.database, key.scope_id};
    if (room_of(scope).left == 0 && full_for(scope, now) == 0) remove_idle(scope, now);
    if (room_of(scope).left == 0) return nullptr;
    count_bucket(key);
    bool found;
    Entry* entry = table.enter(key, found);
    SpinLockInit(&entry->mutex);
    entry->bucket = core::Bucket{};
    return entry;
}

}  // namespace

Charge charge_bucket(std::int32_t scope_id, std::string_view tenant, std::int32_t per_minute,
                     TimestampTz now) {
    Assert(per_minute >= 1 && tenant.size() <= core::max_tenant_bytes);
    BucketKey key{shared->seed, MyDatabaseId, scope_id, {}};
    std::copy(tenant.begin(), tenant.end(), key.tenant);
    LWLockAcquire(lock, LW_SHARED);
    Entry* entry = table.find(key);
    if (entry == nullptr) {
        LWLockRelease(lock);
        LWLockAcquire(lock, LW_EXCLUSIVE);
        entry = find_or_add(key, now);
    }
    Charge result{.has_room = entry != nullptr};
    if (result.has_room) {
        SpinLockAcquire(&entry->mutex);
        result.wait = core::charge(entry->bucket, per_minute, now);
        SpinLockRelease(&entry->mutex);
    } else {
        result.wait = std::max<std::int64_t>(full_for({MyDatabaseId, scope_id}, now), 1);
    }
    LWLockRelease(lock);
    return result;
}

Room room_of(std::int32_t scope_id) {
    LWLockAcquire(lock, LW_SHARED);
    const Room room = room_of(HolderKey{MyDatabaseId, scope_id});
    LWLockRelease(lock);
    return room;
}

Size limiter_size() {
    return sizeof(Shared);
}

Size limiter_table_size() {
    return add_size(hash_estimate_size(guc::limited_tenants, sizeof(Entry)),
                    hash_estimate_size(2 * guc::limited_tenants, sizeof(Occupant)));
}

void attach_limiter(void* memory, LWLockPadded* locks, bool found) {
    shared = static_cast<Shared*>(memory);
    lock = &locks->lock;
    table.attach("idem_limiter buckets", guc::limited_tenants);
    holders.attach("idem_limiter holders", 2 * guc::limited_tenants);
    if (found) return;
    if (!pg_strong_random(&shared->seed, sizeof shared->seed)) report::crypto_failure();
    shared->next_search = PG_INT64_MIN;
}

}  // namespace idem::pg
