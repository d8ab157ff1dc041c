#include "pg/hot_keys.hpp"

#include "pg/guc.hpp"

namespace idem::pg {
namespace {

// In shared memory, one per slot of the statistics.
struct alignas(PG_CACHE_LINE_SIZE) Sketches {
    core::HotKeys<core::replay_places> replays;
    core::HotKeys<core::conflict_places> conflicts;
};

constinit Sketches* sketches = nullptr;
constinit LWLockPadded* locks = nullptr;

Sketches& sketches_of(std::size_t slot) {
    Assert(sketches != nullptr && slot < static_cast<std::size_t>(guc::counted_scopes));
    return sketches[slot];
}

LWLock* lock_of(std::size_t slot) {
    return &locks[slot % hot_keys_locks].lock;
}

template <std::size_t Places>
void note(std::size_t slot, core::HotKeys<Places> Sketches::*which, const core::Digest& digest,
          std::int64_t weight) {
    const TimestampTz now = GetCurrentTimestamp();
    LWLockAcquire(lock_of(slot), LW_EXCLUSIVE);
    core::count_hot_key(sketches_of(slot).*which, digest, weight, now);
    LWLockRelease(lock_of(slot));
}

Sketches copy_of(std::size_t slot) {
    LWLockAcquire(lock_of(slot), LW_SHARED);
    const Sketches copy = sketches_of(slot);
    LWLockRelease(lock_of(slot));
    return copy;
}

template <std::size_t Places>
std::span<const core::HotKey> keys_of(const core::HotKeys<Places>& sketch) {
    Assert(sketch.used <= Places);
    return std::span(sketch.keys).first(sketch.used);
}

// A key that has replays and conflicts is in both sketches.
void add_conflicts(std::span<HotKeyCounts> replayed, const core::HotKey& key, HotKeyCounts*& end) {
    for (HotKeyCounts& counts : replayed) {
        if (counts.digest != key.digest) continue;
        counts.conflicts = core::counted(key);
        counts.first_seen = std::min(counts.first_seen, key.first_seen);
        counts.last_seen = std::max(counts.last_seen, key.last_seen);
        return;
    }
    *end++ = {key.digest, 0, core::counted(key), key.first_seen, key.last_seen};
}

}  // namespace

void note_hot_replay(std::size_t slot, const core::Digest& digest, std::uint64_t nth) {
    const std::int64_t weight = core::replay_weight(nth, pg_prng_uint32(&pg_global_prng_state));
    if (weight > 0) note(slot, &Sketches::replays, digest, weight);
}

void note_hot_conflict(std::size_t slot, const core::Digest& digest) {
    note(slot, &Sketches::conflicts, digest, 1);
}

std::span<const HotKeyCounts> hot_keys_in(std::size_t slot) {
    const Sketches copy = copy_of(slot);
    auto* counts = static_cast<HotKeyCounts*>(
        palloc((core::replay_places + core::conflict_places) * sizeof(HotKeyCounts)));
    HotKeyCounts* end = counts;
    for (const core::HotKey& key : keys_of(copy.replays))
        *end++ = {key.digest, core::counted(key), 0, key.first_seen, key.last_seen};
    const std::span<HotKeyCounts> replayed(counts, end);
    for (const core::HotKey& key : keys_of(copy.conflicts)) add_conflicts(replayed, key, end);
    return {counts, end};
}

void clear_hot_keys(std::size_t slot) {
    LWLockAcquire(lock_of(slot), LW_EXCLUSIVE);
    sketches_of(slot) = Sketches{};
    LWLockRelease(lock_of(slot));
}

Size hot_keys_size() {
    return mul_size(sizeof(Sketches), static_cast<Size>(guc::counted_scopes));
}

void attach_hot_keys(void* memory, LWLockPadded* tranche, bool found) {
    sketches = static_cast<Sketches*>(memory);
    locks = tranche;
    if (found) return;
    std::fill_n(sketches, guc::counted_scopes, Sketches{});
}

}  // namespace idem::pg
