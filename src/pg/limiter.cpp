#include "pg/limiter.hpp"

#include "core/key.hpp"
#include "core/rate.hpp"
#include "pg/guc.hpp"
#include "pg/report.hpp"

namespace idem::pg {
namespace {

constexpr std::uint32_t partitions = limiter_locks - 1;
static_assert((partitions & (partitions - 1)) == 0, "a chain must belong to one partition");
constexpr std::uint32_t none = UINT32_MAX;

// The full identity is kept, so that no two tenants ever share a bucket.
struct Entry {
    core::Bucket bucket;
    std::uint32_t next;  // in its chain, or in the free list
    std::uint32_t hash;
    Oid database;
    std::int32_t scope_id;
    std::uint8_t tenant_size;
    char tenant[core::max_tenant_bytes];
};
static_assert(core::max_tenant_bytes <= UINT8_MAX);

// In shared memory: this, then the heads of the chains, then the entries.
struct Shared {
    std::uint64_t seed;  // nobody can choose tenants that meet in one chain
    std::uint32_t heads;
    slock_t free_lock;
    std::uint32_t free;
    pg_atomic_uint64 none_idle_before;  // what the last vain search for an idle bucket found
    std::uint32_t hand;                 // the partition to evict from next; under the evicting lock
};

struct Identity {
    std::int32_t scope_id;
    std::string_view tenant;
    std::uint32_t hash;
};

constinit Shared* table = nullptr;
constinit LWLockPadded* locks = nullptr;

// A power of two, at least one chain a partition and about one an entry.
std::uint32_t head_count() {
    std::uint32_t count = partitions;
    while (count < static_cast<std::uint32_t>(guc::limited_tenants)) count *= 2;
    return count;
}

std::uint32_t* heads() {
    return reinterpret_cast<std::uint32_t*>(reinterpret_cast<char*>(table) +
                                            MAXALIGN(sizeof(Shared)));
}

Entry* entries() {
    return reinterpret_cast<Entry*>(reinterpret_cast<char*>(heads()) +
                                    MAXALIGN(sizeof(std::uint32_t) * table->heads));
}

LWLock* partition_lock(std::uint32_t partition) {
    return &locks[partition].lock;
}

LWLock* evicting_lock() {
    return &locks[partitions].lock;
}

std::uint32_t& head_of(const Identity& who) {
    return heads()[who.hash & (table->heads - 1)];
}

// Chains are dealt to partitions in turn, so the low bits name the partition.
LWLock* lock_of(const Identity& who) {
    return partition_lock(who.hash % partitions);
}

Identity identity(std::int32_t scope_id, std::string_view tenant) {
    const std::uint64_t of_scope =
        (std::uint64_t{MyDatabaseId} << 32) | static_cast<std::uint32_t>(scope_id);
    const std::uint64_t hash =
        hash_bytes_extended(reinterpret_cast<const unsigned char*>(tenant.data()),
                            static_cast<int>(tenant.size()), table->seed ^ of_scope);
    return {scope_id, tenant, static_cast<std::uint32_t>(hash)};
}

bool is_of(const Entry& entry, const Identity& who) {
    return entry.hash == who.hash && entry.scope_id == who.scope_id &&
           entry.database == MyDatabaseId &&
           std::string_view(entry.tenant, entry.tenant_size) == who.tenant;
}

Entry* find(const Identity& who) {
    for (std::uint32_t i = head_of(who); i != none; i = entries()[i].next)
        if (is_of(entries()[i], who)) return &entries()[i];
    return nullptr;
}

void give_back(std::uint32_t index) {
    SpinLockAcquire(&table->free_lock);
    entries()[index].next = table->free;
    table->free = index;
    SpinLockRelease(&table->free_lock);
}

std::uint32_t take_free() {
    SpinLockAcquire(&table->free_lock);
    const std::uint32_t index = table->free;
    if (index != none) table->free = entries()[index].next;
    SpinLockRelease(&table->free_lock);
    return index;
}

// A new bucket at the head of its chain; NULL when the table is full.
Entry* add(const Identity& who) {
    const std::uint32_t index = take_free();
    if (index == none) return nullptr;
    Entry& entry = entries()[index];
    entry.bucket = core::Bucket{};
    entry.hash = who.hash;
    entry.database = MyDatabaseId;
    entry.scope_id = who.scope_id;
    entry.tenant_size = static_cast<std::uint8_t>(who.tenant.size());
    std::copy(who.tenant.begin(), who.tenant.end(), entry.tenant);
    std::uint32_t& head = head_of(who);
    entry.next = head;
    head = index;
    return &entry;
}

struct Eviction {
    bool freed = false;
    TimestampTz first_idle = PG_INT64_MAX;  // when the first of those that stay will be
};

void evict_from(std::uint32_t partition, TimestampTz now, Eviction& eviction) {
    LWLockAcquire(partition_lock(partition), LW_EXCLUSIVE);
    for (std::uint32_t head = partition; head < table->heads; head += partitions) {
        for (std::uint32_t* link = &heads()[head]; *link != none;) {
            const std::uint32_t index = *link;
            Entry& entry = entries()[index];
            core::cap_arrival(entry.bucket, now);
            if (core::is_idle(entry.bucket, now)) {
                *link = entry.next;
                give_back(index);
                eviction.freed = true;
                continue;
            }
            const TimestampTz idle = entry.bucket.arrival + (entry.bucket.fraction > 0 ? 1 : 0);
            eviction.first_idle = std::min(eviction.first_idle, idle);
            link = &entry.next;
        }
    }
    LWLockRelease(partition_lock(partition));
}

// Partition by partition until one gave something. One backend at a time: the others find what it
// freed, or learn from it how long there is nothing to free.
void search_idle(TimestampTz now) {
    LWLockAcquire(evicting_lock(), LW_EXCLUSIVE);
    Eviction eviction;
    for (std::uint32_t i = 0; i < partitions && !eviction.freed; ++i) {
        table->hand = (table->hand + 1) % partitions;
        evict_from(table->hand, now, eviction);
    }
    const TimestampTz until = eviction.freed ? PG_INT64_MIN : eviction.first_idle;
    pg_atomic_write_u64(&table->none_idle_before, static_cast<std::uint64_t>(until));
    LWLockRelease(evicting_lock());
}

// How long nothing in the full table can give way; 0 when it is worth a search.
std::int64_t full_for(TimestampTz now) {
    const auto until = static_cast<TimestampTz>(pg_atomic_read_u64(&table->none_idle_before));
    if (until <= now || until > now + 2 * core::usecs_per_minute) return 0;  // or a clock set back
    return until - now;
}

}  // namespace

bool limits_available() {
    return table != nullptr;
}

Admission admit(std::int32_t scope_id, std::string_view tenant, std::int32_t per_minute,
                TimestampTz now) {
    const Identity who = identity(scope_id, tenant);
    for (;;) {
        LWLockAcquire(lock_of(who), LW_EXCLUSIVE);
        Entry* entry = find(who);
        if (entry == nullptr) entry = add(who);
        const std::int64_t wait =
            entry == nullptr ? 0 : core::charge(entry->bucket, per_minute, now);
        LWLockRelease(lock_of(who));
        if (entry != nullptr) return {wait == 0, wait};

        if (full_for(now) == 0) search_idle(now);
        if (const std::int64_t full = full_for(now); full > 0) return {false, full};
        CHECK_FOR_INTERRUPTS();
    }
}

Size limiter_size() {
    Size size = MAXALIGN(sizeof(Shared));
    size = add_size(size, MAXALIGN(mul_size(sizeof(std::uint32_t), head_count())));
    return add_size(size, mul_size(sizeof(Entry), static_cast<Size>(guc::limited_tenants)));
}

void attach_limiter(void* memory, LWLockPadded* tranche, bool found) {
    table = static_cast<Shared*>(memory);
    locks = tranche;
    if (found) return;
    if (!pg_strong_random(&table->seed, sizeof table->seed)) report::crypto_failure();
    table->heads = head_count();
    table->hand = 0;
    table->free = none;
    SpinLockInit(&table->free_lock);
    pg_atomic_init_u64(&table->none_idle_before, static_cast<std::uint64_t>(PG_INT64_MIN));
    std::fill_n(heads(), table->heads, none);
    for (int i = guc::limited_tenants - 1; i >= 0; --i) give_back(static_cast<std::uint32_t>(i));
}

}  // namespace idem::pg
