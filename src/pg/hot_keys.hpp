// The sketches of core/hot_keys in shared memory: one of replays and one of conflicts for each slot
// of the statistics (pg/stats), which finds the slot of a scope and tells when it is given up.
//
// A sketch holds digests, never a key or a tenant. It is read and changed under an LWLock that its
// slot shares with others, for as long as it takes to compare up to 32 digests. Order of locks:
// that of the statistics, then this one. Nothing is kept over a restart.
#pragma once

#include "core/hot_keys.hpp"
#include "pg/server.hpp"

namespace idem::pg {

// From first_seen to last_seen. Replays are estimated (see core/hot_keys.hpp), conflicts counted.
struct HotKeyCounts {
    core::Digest digest;
    std::int64_t replays;
    std::int64_t conflicts;
    TimestampTz first_seen;
    TimestampTz last_seen;
};

// nth is how many replays of the scope were counted before this one.
void note_hot_replay(std::size_t slot, const core::Digest& digest, std::uint64_t nth);
void note_hot_conflict(std::size_t slot, const core::Digest& digest);

// The keys of both sketches of the slot, in no order; palloc'd.
std::span<const HotKeyCounts> hot_keys_in(std::size_t slot);

void clear_hot_keys(std::size_t slot);

inline constexpr int hot_keys_locks = 16;
Size hot_keys_size();
void attach_hot_keys(void* memory, LWLockPadded* locks, bool found);

}  // namespace idem::pg
