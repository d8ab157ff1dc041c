// What the record tables hold: totals per scope, at a bounded cost.
//
// No index has these figures, so the tables are read, as if they were one: all of it if it is
// small; otherwise stretches of it, evenly spread, each at a random place, and the figures are
// extrapolated. Reads the newest committed rows. Takes no locks but the tables'.
#pragma once

#include "core/key.hpp"
#include "pg/hash_table.hpp"
#include "pg/record.hpp"
#include "pg/server.hpp"

namespace idem::pg {

// Stands for the scopes that were not added: those that were dropped.
inline constexpr std::int32_t no_scope = 0;

struct ScopeTotals {
    std::int32_t scope_id;  // the hash key
    std::optional<std::int32_t> max_attempts;
    std::int64_t ttl;
    // Of unexpired records:
    std::int64_t in_progress;
    std::int64_t completed;
    std::int64_t failed;     // including the exhausted ones
    std::int64_t lapsed;     // in progress, the lease has ended, and no claim has taken over
    std::int64_t exhausted;  // the lease of the last attempt has ended
    std::int64_t weak;       // keys that are likely to be used twice
    std::int64_t answer_bytes;
    std::int64_t short_lived;  // for less than a tenth of the scope's TTL
    std::int64_t long_lived;   // for more than two years
    // Unique UUIDs that occur both with and without a tenant, and with several tenants. At least so
    // many: they are not extrapolated.
    std::int64_t untenanted;
    std::int64_t shared;
    std::optional<TimestampTz> oldest;  // created
    std::optional<TimestampTz> newest;
    std::optional<TimestampTz> next_expiry;
    std::optional<TimestampTz> lapsed_since;
    // Of the other records, which the worker has yet to purge:
    std::int64_t expired;
    std::optional<TimestampTz> expired_since;
};

// The tenants with which a UUID has occurred in a scope.
struct UuidTenants {
    struct Key {
        std::int32_t scope_id;
        core::Uuid uuid;
    } key;
    std::uint64_t first_tenant = 0;  // the hash of the first one that is not ''
    bool with_tenant = false;
    bool without_tenant = false;
    bool with_several = false;
};
static_assert(sizeof(UuidTenants::Key) == sizeof(std::int32_t) + sizeof(core::Uuid), "no padding");

class Survey {
  public:
    Survey();
    void add_scope(std::int32_t id, std::optional<std::int32_t> max_attempts, std::int64_t ttl);
    // Also counts what is untenanted and shared. Takes memory for each UUID that is read.
    void compare_tenants();
    void run(TimestampTz now, BlockNumber max_blocks);

    // The part of the tables that was read, from 0 to 1. The totals are extrapolated already.
    double coverage() const { return coverage_; }
    bool knows(std::int32_t scope_id) const;
    const ScopeTotals& totals(std::int32_t scope_id) const;  // of a known scope, or of no_scope

  private:
    void read(TimestampTz now, std::uint64_t first, std::uint64_t size);
    void read(Relation records, TimestampTz now, BlockNumber first, BlockNumber size);
    void compare_tenant(ScopeTotals& totals, const RecordRow& seen);
    void extrapolate();
    ScopeTotals& totals_for(std::int32_t scope_id);

    // A table, with the range that its blocks have among those of all tables.
    struct Part {
        Oid table;
        std::uint64_t begin;
        std::uint64_t end;
    };
    std::span<const Part> measure();

    std::span<const Part> parts_;  // palloc'd
    HashTable<std::int32_t, ScopeTotals> totals_;
    HashTable<UuidTenants::Key, UuidTenants> uuids_;
    bool compares_tenants_ = false;
    double coverage_ = 1;
};
static_assert(std::is_trivially_destructible_v<Survey>);

}  // namespace idem::pg
