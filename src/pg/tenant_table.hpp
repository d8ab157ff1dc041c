// A hash table in shared memory, with a value for each of at most idem.limited_tenants tenants.
//
// Its chains are distributed over partitions, each under an LWLock that is held while one chain is
// read, so that tenants hardly delay each other. Order of locks: one partition, then the spinlock
// of the free list; never two partitions. Database, scope and tenant are kept in full, so that no
// two tenants ever share a value.
//
// An entry keeps its number until it is removed. The object is a handle of one backend.
#pragma once

#include "core/key.hpp"
#include "pg/guc.hpp"
#include "pg/report.hpp"
#include "pg/server.hpp"

namespace idem::pg {

// Which entry is meant.
struct TenantKey {
    Oid database;
    std::int32_t scope_id;
    std::string_view tenant;
    std::uint32_t hash;
};

template <class Value>
class TenantTable {
  public:
    static constexpr std::uint32_t partitions = 64;
    static_assert((partitions & (partitions - 1)) == 0, "a chain must belong to one partition");
    static constexpr std::uint32_t none = UINT32_MAX;

    static Size size() {
        const Size chains = MAXALIGN(mul_size(sizeof(std::uint32_t), head_count()));
        const Size entries = mul_size(sizeof(Entry), static_cast<Size>(guc::limited_tenants));
        return add_size(MAXALIGN(sizeof(Shared)), add_size(chains, entries));
    }

    // locks are one for each partition.
    void attach(void* memory, LWLockPadded* locks, bool found) {
        shared_ = static_cast<Shared*>(memory);
        locks_ = locks;
        if (!found) set_up();
    }

    bool available() const { return shared_ != nullptr; }

    TenantKey key(std::int32_t scope_id, std::string_view tenant) const {
        const std::uint64_t of_scope =
            (std::uint64_t{MyDatabaseId} << 32) | static_cast<std::uint32_t>(scope_id);
        const std::uint64_t hash =
            hash_bytes_extended(reinterpret_cast<const unsigned char*>(tenant.data()),
                                static_cast<int>(tenant.size()), shared_->seed ^ of_scope);
        return {MyDatabaseId, scope_id, tenant, static_cast<std::uint32_t>(hash)};
    }

    // Chains are assigned to the partitions in turn, so the low bits of the hash name the
    // partition.
    LWLock* lock_of(const TenantKey& key) const { return partition_lock(key.hash % partitions); }
    LWLock* lock_of(std::uint32_t entry) const {
        return partition_lock(entries()[entry].hash % partitions);
    }

    // The three need the lock. none: there is no such entry.
    std::uint32_t find(const TenantKey& key) const {
        Assert(LWLockHeldByMe(lock_of(key)));
        std::uint32_t i = head_of(key.hash);
        while (i != none && !is_of(entries()[i], key)) i = entries()[i].next;
        return i;
    }
    Value& value(std::uint32_t entry) const {
        Assert(entry < static_cast<std::uint32_t>(guc::limited_tenants));
        Assert(LWLockHeldByMe(lock_of(entry)));
        return entries()[entry].value;
    }
    // A new entry at the head of its chain; none when the table is full.
    std::uint32_t add(const TenantKey& key) const {
        Assert(LWLockHeldByMeInMode(lock_of(key), LW_EXCLUSIVE));
        Assert(key.tenant.size() <= core::max_tenant_bytes);
        const std::uint32_t index = take_free();
        if (index == none) return none;
        Entry& entry = entries()[index];
        entry.value = Value{};
        entry.hash = key.hash;
        entry.database = key.database;
        entry.scope_id = key.scope_id;
        entry.tenant_size = static_cast<std::uint8_t>(key.tenant.size());
        std::copy(key.tenant.begin(), key.tenant.end(), entry.tenant);
        entry.next = std::exchange(head_of(key.hash), index);
        return index;
    }

    // Calls remove(database, scope_id, value) for each entry of the partition, under its lock, and
    // removes those for which it returns true.
    template <class Remove>
    void prune(std::uint32_t partition, Remove remove) const {
        LWLockAcquire(partition_lock(partition), LW_EXCLUSIVE);
        for (std::uint32_t head = partition; head < shared_->heads; head += partitions) {
            for (std::uint32_t* link = &heads()[head]; *link != none;) {
                const std::uint32_t index = *link;
                Entry& entry = entries()[index];
                if (!remove(entry.database, entry.scope_id, entry.value)) {
                    link = &entry.next;
                    continue;
                }
                *link = entry.next;
                give_back(index);
            }
        }
        LWLockRelease(partition_lock(partition));
    }

  private:
    struct Entry {
        Value value;
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
        std::uint64_t seed;  // random: clients cannot choose tenants that fall into one chain
        std::uint32_t heads;
        slock_t free_lock;
        std::uint32_t free;
    };

    // A power of two: at least one chain per partition and about one per entry.
    static std::uint32_t head_count() {
        std::uint32_t count = partitions;
        while (count < static_cast<std::uint32_t>(guc::limited_tenants)) count *= 2;
        return count;
    }

    static bool is_of(const Entry& entry, const TenantKey& key) {
        return entry.hash == key.hash && entry.scope_id == key.scope_id &&
               entry.database == key.database &&
               std::string_view(entry.tenant, entry.tenant_size) == key.tenant;
    }

    void set_up() {
        if (!pg_strong_random(&shared_->seed, sizeof shared_->seed)) report::crypto_failure();
        shared_->heads = head_count();
        shared_->free = none;
        SpinLockInit(&shared_->free_lock);
        std::fill_n(heads(), shared_->heads, none);
        for (int i = guc::limited_tenants - 1; i >= 0; --i)
            give_back(static_cast<std::uint32_t>(i));
    }

    std::uint32_t* heads() const {
        return reinterpret_cast<std::uint32_t*>(reinterpret_cast<char*>(shared_) +
                                                MAXALIGN(sizeof(Shared)));
    }
    Entry* entries() const {
        return reinterpret_cast<Entry*>(reinterpret_cast<char*>(heads()) +
                                        MAXALIGN(sizeof(std::uint32_t) * shared_->heads));
    }
    std::uint32_t& head_of(std::uint32_t hash) const {
        return heads()[hash & (shared_->heads - 1)];
    }
    LWLock* partition_lock(std::uint32_t partition) const { return &locks_[partition].lock; }

    void give_back(std::uint32_t index) const {
        SpinLockAcquire(&shared_->free_lock);
        entries()[index].next = shared_->free;
        shared_->free = index;
        SpinLockRelease(&shared_->free_lock);
    }
    std::uint32_t take_free() const {
        SpinLockAcquire(&shared_->free_lock);
        const std::uint32_t index = shared_->free;
        if (index != none) shared_->free = entries()[index].next;
        SpinLockRelease(&shared_->free_lock);
        return index;
    }

    Shared* shared_ = nullptr;
    LWLockPadded* locks_ = nullptr;
};

}  // namespace idem::pg
