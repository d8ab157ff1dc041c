#include "api/settled.hpp"

#include "core/duration.hpp"
#include "pg/report.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;

// Whoever is at work on the row past the key lock matters, unless the row is over anyway: the
// purger, most likely, deletes it.
bool is_settled(const pg::Found& found) {
    const bool over =
        found.presence == core::Presence::deleting && found.record.expires <= GetCurrentTimestamp();
    return over || !TransactionIdIsValid(found.working);
}

}  // namespace

void refuse_in_flight(const pg::KeyLock& lock, std::string_view key) {
    const report::Holder holder = lock.holder().value_or(report::Holder{});
    const TimestampTz now = GetCurrentTimestamp();
    report::in_progress(key, holder, core::retry_after(now - holder.since.value_or(now)),
                        report::Bound::scope);
}

pg::Found settled(const pg::KeyName& name, pg::KeyLock& lock, std::int64_t wait) {
    const TimestampTz deadline = GetCurrentTimestamp() + wait;
    if (!lock.try_acquire() && !lock.acquire_by(deadline)) refuse_in_flight(lock, name.key);
    for (;;) {
        const pg::Records records = pg::Records::to_write();
        const pg::Found found = pg::probe(records, name);
        records.close();
        if (is_settled(found)) return found;
        if (!pg::wait_for_transaction(found.working, deadline)) refuse_in_flight(lock, name.key);
    }
}

}  // namespace idem::api
