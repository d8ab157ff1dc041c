// The file that carries the counters over a clean restart: pg_stat/idem.stat.
//
// Written and read by the postmaster, while no backend runs, and removed as soon as it was read:
// what a crash leaves behind is never taken for the truth. A file that does not fit, damaged or of
// another version, is dropped with a LOG line.
#pragma once

#include "pg/server.hpp"
#include "pg/stats.hpp"

namespace idem::pg {

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
