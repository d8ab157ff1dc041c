// idem.new_key(): keys for callers that have none of their own.
//
// Nothing is read or written: it works on a standby. The last tick given out is backend-local.
#include "core/duration.hpp"
#include "core/uuid.hpp"
#include "pg/boundary.hpp"
#include "pg/entropy.hpp"

namespace idem::api {
namespace {

constexpr std::int64_t postgres_epoch =
    (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * core::usecs_per_day;

constinit std::uint64_t last_tick = 0;

}  // namespace
}  // namespace idem::api

IDEM_FUNCTION(idem_new_key) {
    using namespace idem;
    (void)fcinfo;
    const std::int64_t now = GetCurrentTimestamp() + api::postgres_epoch;
    api::last_tick = core::next_uuid_tick(api::last_tick, now);
    const core::UuidText key = core::uuid_v7(api::last_tick, pg::random_bits());
    PG_RETURN_TEXT_P(pg::text_of({key.data(), key.size()}));
}
