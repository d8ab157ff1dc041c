// Statistics: what has happened in each scope since the last reset, as counters and histograms in
// shared memory.
//
// They are atomic and are incremented without a lock and outside any transaction: a count stays
// when the transaction rolls back. A backend finds or allots a scope's slot under an LWLock once
// and remembers it until any slot is given up. There are idem.counted_scopes slots; a scope that
// finds none free is not counted. The purge worker gives a slot up when its scope or database is
// gone: not DROP itself, because a rollback would not bring the counters back.
//
// A restart begins at zero, as the time in each row shows. Longer series are kept by a monitoring
// system, which expects counters that start again.
#pragma once

#include "core/duration.hpp"
#include "pg/server/postgres.hpp"

namespace idem::pg {

// In the order in which the view idem.stats takes them from the numbers of a scope.
enum class Counter {
    claims,          // new operations started
    replays,         // stored answers and failures returned
    in_flight,       // claims refused because another one was in progress
    waits,           // claims that waited for another one
    wait_time,       // for how long, in microseconds
    conflicts,       // claims with another request under the same key
    takeovers,       // new attempts at an operation whose lease had ended
    completions,     // answers stored
    failures,        // final failures stored
    releases,        // claims released
    stale,           // keys refused because they are too old
    weak,            // keys that are likely to be used twice
    limited,         // claims refused by a limit
    expired_reused,  // claims of a key whose record had expired
    purged,          // expired records deleted
    advances,        // messages of streams that moved their watermark
    duplicates,      // messages of streams at or behind their watermark
    exhausted,       // claims refused because no attempts were left
    late_replays,    // replays that came longer after the answer than retries do
    count
};

// What the histograms measure. The time of an operation runs from its first claim to its answer, as
// created_at and completed_at of a record do: it includes the pauses between attempts.
enum class Duration {
    atomic,  // of operations whose last claim was atomic
    leased,  // of operations whose last claim was leased
    wait,    // of claims that waited for another one
    count
};

// The numbers of a scope: the counters, then for each kind of duration its buckets and their sum in
// microseconds.
constexpr std::size_t index_of(Counter which) {
    return static_cast<std::size_t>(which);
}
constexpr std::size_t first_bucket_of(Duration which) {
    return index_of(Counter::count) + static_cast<std::size_t>(which) * (core::bucket_count + 1);
}
inline constexpr std::size_t number_count = first_bucket_of(Duration::count);

// Nothing is counted on a server that has not preloaded the library.
void count(std::int32_t scope_id, Counter which, std::int64_t n = 1);

// Adds a duration to its histogram, in microseconds. One below zero, by a clock that was set back,
// counts as zero.
void observe(std::int32_t scope_id, Duration which, std::int64_t usecs);

// A scope of any database. The table's OID distinguishes it from a scope with the same id in an
// extension that was dropped since.
struct ScopeIdentity {
    Oid database = InvalidOid;
    Oid relation = InvalidOid;  // idem.scope
    std::int32_t scope_id = 0;
    bool operator==(const ScopeIdentity&) const = default;
};

struct ScopeStats {
    ArrayType* numbers;  // bigint[], palloc'd
    TimestampTz since;
};

// Nothing when the scope is not counted.
std::optional<ScopeStats> read_stats(std::int32_t scope_id);

// Sets the statistics of one scope of this database, or of all its scopes, to zero.
void reset_stats(std::optional<std::int32_t> scope_id);

// Every scope that has a slot, in any database. A copy, palloc'd; empty when nothing is counted.
std::span<const ScopeIdentity> counted_scopes();

// Gives up the slot of the scope, so that another scope can take it.
void give_up_stats(const ScopeIdentity& scope);

inline constexpr int stats_locks = 1;
Size stats_size();
void attach_stats(void* memory, LWLockPadded* locks, bool found);

}  // namespace idem::pg
