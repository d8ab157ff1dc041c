// What the record table holds, a tally for each scope, at a bounded cost.
//
// There is nothing to look it up in, so the table is read: as a whole as long as it is small, else
// stretches of it, evenly spread, each at a random place, and the figures are extrapolated. Reads
// the newest committed rows; no locks but the table's.
#pragma once

#include "pg/server.hpp"

namespace idem::pg {

// For the records of scopes that were not named: those that were dropped.
inline constexpr std::int32_t no_scope = 0;

struct Tally {
    std::int32_t scope_id;  // the hash key
    std::optional<std::int32_t> max_attempts;
    // Of unexpired records.
    std::int64_t in_progress;
    std::int64_t completed;
    std::int64_t failed;     // the exhausted among them
    std::int64_t lapsed;     // in progress, the lease over, and nobody has taken over
    std::int64_t exhausted;  // the last attempt's lease is over
    std::int64_t weak;       // keys that are easily used twice
    std::int64_t answer_bytes;
    std::optional<TimestampTz> oldest;  // created
    std::optional<TimestampTz> newest;
    std::optional<TimestampTz> next_expiry;
    std::optional<TimestampTz> lapsed_since;
    // And of the others, which wait for the purger.
    std::int64_t expired;
    std::optional<TimestampTz> expired_since;
};

class Survey {
  public:
    Survey();
    void add_scope(std::int32_t id, std::optional<std::int32_t> max_attempts);
    void run(TimestampTz now, BlockNumber max_blocks);

    // How much of the table was read, from 0 to 1. Counts are extrapolated already.
    double coverage() const { return coverage_; }
    bool knows(std::int32_t scope_id) const;
    const Tally& tally(std::int32_t scope_id) const;  // of a known scope, or of no_scope

  private:
    void read(Relation records, TimestampTz now, BlockNumber first, BlockNumber size);
    void extrapolate();
    Tally& tally_of(std::int32_t scope_id);

    HTAB* tallies_;
    double coverage_ = 1;
};
static_assert(std::is_trivially_destructible_v<Survey>);

}  // namespace idem::pg
