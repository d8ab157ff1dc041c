// What has happened in each scope since the last reset: counters in shared memory.
//
// Counters are atomic and added to without a lock, outside any transaction: what was counted stays
// counted when the transaction rolls back. A scope's slot is found or allotted under an LWLock once
// for each backend, then remembered until any slot is given up. idem.counted_scopes slots exist; a
// scope that finds none free is not counted.
//
// A clean shutdown writes the slots to a file, which the next start reads and removes: after a
// crash all begins at zero. Slots are given up by the purge worker, when it finds their scope or
// database gone (a rollback must not lose the counters of a scope whose drop it undoes).
//
// The file that carries the counters over a clean restart: pg_stat/idem.stat.
//
// Written and read by the postmaster, while no backend runs, and removed as soon as it was read:
// what a crash leaves behind is never taken for the truth. A file that does not fit, damaged or of
// another version, is dropped with a LOG line.
#pragma once

#include "pg/server.hpp"

namespace idem::pg {

enum class Counter {
    claims,          // new operations started
    replays,         // stored answers and failures handed out
    in_flight,       // claims told that another is at it
    waits,           // claims that waited for another
    wait_time,       // and how long, in microseconds
    conflicts,       // another request under the same key
    takeovers,       // new attempts at an operation whose lease was over
    completions,     // answers stored
    failures,        // final failures stored
    releases,        // claims given up
    stale,           // keys refused because they are too old
    weak,            // keys that are easily used twice
    limited,         // claims refused by a limit
    expired_reused,  // claims of a key whose record had expired
    purged,          // expired records deleted
    count
};
inline constexpr auto counter_count = static_cast<std::size_t>(Counter::count);

// False on a server that has not preloaded the library: nothing is counted.
bool stats_available();

void count(std::int32_t scope_id, Counter which, std::int64_t n = 1);

// A scope, whatever its database. The table tells it from a scope of the same id in an extension
// that has been dropped since.
struct ScopeIdentity {
    Oid database = InvalidOid;
    Oid relation = InvalidOid;  // idem.scope
    std::int32_t scope_id = 0;
    bool operator==(const ScopeIdentity&) const = default;
};

struct ScopeStats {
    std::array<std::int64_t, counter_count> counters;
    TimestampTz since;
};

// Nothing when the scope is not counted.
std::optional<ScopeStats> read_stats(std::int32_t scope_id);

// Back to zero: one scope of this database, or all.
void reset_stats(std::optional<std::int32_t> scope_id);

// What is counted: every scope that has a slot, in any database. Copied, palloc'd; empty when
// nothing is counted at all.
std::span<const ScopeIdentity> counted_scopes();

// Gives the scope's slot up, for another to take.
void give_up_stats(const ScopeIdentity& scope);

inline constexpr int stats_locks = 1;
Size stats_size();
void attach_stats(void* memory, LWLockPadded* locks, bool found);

struct SavedStats {
    ScopeIdentity scope;
    ScopeStats stats;
};

class StatsWriter {
  public:
    StatsWriter();
    void write(const SavedStats& saved);
    void finish();

  private:
    FILE* file_;
    bool failed_ = false;
};
static_assert(std::is_trivially_destructible_v<StatsWriter>);

void read_stats_file(void (*use)(const SavedStats&));

}  // namespace idem::pg
