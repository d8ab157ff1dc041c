#include "pg/shared/stats.hpp"

#include "pg/server/guc.hpp"
#include "pg/store/table.hpp"

namespace idem::pg {
namespace {

// In shared memory. A slot's scope is read and written under the lock; in a free slot its database
// is InvalidOid.
struct alignas(PG_CACHE_LINE_SIZE) Slot {
    ScopeIdentity scope;
    TimestampTz since;
    std::array<pg_atomic_uint64, number_count> numbers;
};

static_assert(sizeof(Slot) == 1280, "the description of idem.counted_scopes says how large it is");

// In shared memory: this, then the slots.
struct alignas(PG_CACHE_LINE_SIZE) Shared {
    pg_atomic_uint64 given_up;  // slots given up so far; when it changes, backends look again
    std::int32_t slots;
    std::int32_t used;  // the slots from here on were never allotted
};

// What a backend remembers: the slot of a scope, or NULL when it found none free.
struct KnownSlot {
    ScopeIdentity scope;
    Slot* slot;
};

constinit Shared* shared = nullptr;
constinit LWLock* lock = nullptr;
constinit std::array<KnownSlot, 64> known{};
constinit std::uint64_t known_given_up = 0;

// ---- Slots --------------------------------------------------------------------------------------

std::span<Slot> all_slots() {
    return {reinterpret_cast<Slot*>(shared + 1), static_cast<std::size_t>(shared->slots)};
}

std::span<Slot> used_slots() {
    Assert(shared->used >= 0 && shared->used <= shared->slots);
    return all_slots().first(static_cast<std::size_t>(shared->used));
}

void zero(Slot& slot) {
    for (pg_atomic_uint64& number : slot.numbers) pg_atomic_write_u64(&number, 0);
    slot.since = GetCurrentTimestamp();
}

ScopeIdentity identity(std::int32_t scope_id) {
    return {MyDatabaseId, table_oid(Table::scope), scope_id};
}

Slot* find_slot(const ScopeIdentity& scope) {
    for (Slot& slot : used_slots())
        if (slot.scope == scope) return &slot;
    return nullptr;
}

// The caller holds the lock.
Slot* allot(const ScopeIdentity& scope) {
    Assert(LWLockHeldByMeInMode(lock, LW_EXCLUSIVE));
    Assert(OidIsValid(scope.database));
    Slot* slot = find_slot(ScopeIdentity{});
    if (slot == nullptr && shared->used < shared->slots)
        slot = &all_slots()[static_cast<std::size_t>(shared->used++)];
    if (slot == nullptr) return nullptr;
    zero(*slot);
    slot->scope = scope;
    return slot;
}

Slot* find_or_allot(const ScopeIdentity& scope) {
    LWLockAcquire(lock, LW_SHARED);
    Slot* slot = find_slot(scope);
    LWLockRelease(lock);
    if (slot != nullptr) return slot;
    LWLockAcquire(lock, LW_EXCLUSIVE);
    slot = find_slot(scope);
    if (slot == nullptr) slot = allot(scope);
    LWLockRelease(lock);
    return slot;
}

// The slot of a scope of this database. NULL when nothing is counted, or when every slot belongs to
// another scope.
Slot* slot_of(std::int32_t scope_id) {
    if (shared == nullptr) return nullptr;
    const ScopeIdentity scope = identity(scope_id);
    const std::uint64_t given_up = pg_atomic_read_u64(&shared->given_up);
    if (given_up != known_given_up) {
        known = {};
        known_given_up = given_up;
    }
    KnownSlot& mine = known[static_cast<std::uint32_t>(scope.scope_id) % known.size()];
    if (mine.scope != scope) mine = {scope, find_or_allot(scope)};
    return mine.slot;
}

}  // namespace

void count(std::int32_t scope_id, Counter which, std::int64_t n) {
    Assert(which < Counter::count);
    if (Slot* slot = slot_of(scope_id); slot != nullptr)
        pg_atomic_fetch_add_u64(&slot->numbers[index_of(which)], n);
}

void observe(std::int32_t scope_id, Duration which, std::int64_t usecs) {
    Assert(which < Duration::count);
    Slot* slot = slot_of(scope_id);
    if (slot == nullptr) return;
    pg_atomic_uint64* buckets = &slot->numbers[first_bucket_of(which)];
    pg_atomic_fetch_add_u64(&buckets[core::bucket_of(usecs)], 1);
    pg_atomic_fetch_add_u64(&buckets[core::bucket_count], std::max<std::int64_t>(usecs, 0));
}

std::optional<ScopeStats> read_stats(std::int32_t scope_id) {
    Slot* slot = slot_of(scope_id);
    if (slot == nullptr) return std::nullopt;
    std::array<Datum, number_count> numbers;
    for (std::size_t i = 0; i < numbers.size(); ++i)
        numbers[i] = UInt64GetDatum(pg_atomic_read_u64(&slot->numbers[i]));
    return ScopeStats{construct_array(numbers.data(), static_cast<int>(numbers.size()), INT8OID,
                                      sizeof(std::int64_t), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE),
                      slot->since};
}

void reset_stats(std::optional<std::int32_t> scope_id) {
    if (shared == nullptr) return;
    const ScopeIdentity which = identity(scope_id.value_or(0));
    LWLockAcquire(lock, LW_EXCLUSIVE);
    for (Slot& slot : used_slots()) {
        const bool meant = scope_id ? slot.scope == which
                                    : slot.scope.database == which.database &&
                                          slot.scope.relation == which.relation;
        if (meant) zero(slot);
    }
    LWLockRelease(lock);
}

std::span<const ScopeIdentity> counted_scopes() {
    if (shared == nullptr) return {};
    const auto size = sizeof(ScopeIdentity) * static_cast<Size>(shared->slots);
    auto* scopes = static_cast<ScopeIdentity*>(palloc(size));
    std::size_t n = 0;
    LWLockAcquire(lock, LW_SHARED);
    for (const Slot& slot : used_slots())
        if (OidIsValid(slot.scope.database)) scopes[n++] = slot.scope;
    LWLockRelease(lock);
    return {scopes, n};
}

void give_up_stats(const ScopeIdentity& scope) {
    LWLockAcquire(lock, LW_EXCLUSIVE);
    if (Slot* slot = find_slot(scope); slot != nullptr) {
        slot->scope = ScopeIdentity{};
        pg_atomic_fetch_add_u64(&shared->given_up, 1);
    }
    LWLockRelease(lock);
}

Size stats_size() {
    return add_size(sizeof(Shared), mul_size(sizeof(Slot), static_cast<Size>(guc::counted_scopes)));
}

void attach_stats(void* memory, LWLockPadded* locks, bool found) {
    shared = static_cast<Shared*>(memory);
    lock = &locks->lock;
    if (found) return;
    shared->slots = guc::counted_scopes;
    shared->used = 0;
    pg_atomic_init_u64(&shared->given_up, 0);
    for (Slot& slot : all_slots()) {
        slot.scope = ScopeIdentity{};
        for (pg_atomic_uint64& number : slot.numbers) pg_atomic_init_u64(&number, 0);
    }
}

}  // namespace idem::pg
