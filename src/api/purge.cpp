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
    if (max_records < 1)
        pg::report::invalid_argument("max_records", "The number must be at least 1.");
    const auto swept = pg::sweep_step(GetCurrentTimestamp(), {max_records, MaxBlockNumber});
    if (swept.subscribed) pg::report::nothing_purged_on_subscriber();
    PG_RETURN_INT64(swept.deleted);
}

IDEM_FUNCTION(idem_purge_block) {
    PG_RETURN_INT64(idem::pg::next_block());
}
