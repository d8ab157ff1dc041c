// idem.purge(): deletes expired records, for cron. Who may call it is a matter of EXECUTE.
// idem.purge_block(): where it goes on.
#include "api/arguments.hpp"
#include "pg/report.hpp"
#include "pg/sweep.hpp"

namespace {
constexpr std::int32_t default_max_records = 10'000;
}

IDEM_FUNCTION(idem_purge) {
    using namespace idem;
    api::require_writable("idem.purge()");
    const std::int32_t max_records = pg::int_arg(fcinfo, 0).value_or(default_max_records);
    if (max_records < 1) pg::report::invalid_argument("max_records", "It must be at least 1.");
    const auto swept = pg::sweep_step(GetCurrentTimestamp(), {max_records, MaxBlockNumber});
    if (swept.subscribed)
        ereport(NOTICE, (errmsg("nothing was purged: the records arrive by subscription"),
                         errdetail("The publisher purges, and its deletes are replicated."),
                         errhint("If this server has become the primary, drop the subscription.")));
    PG_RETURN_INT64(swept.deleted);
}

IDEM_FUNCTION(idem_purge_block) {
    PG_RETURN_INT64(idem::pg::next_block());
}
