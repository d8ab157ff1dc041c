#include "api/settled.hpp"

#include "core/duration.hpp"
#include "pg/report.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;

[[noreturn]] void refuse_in_flight(const pg::KeyLock& lock, std::string_view key) {
    const report::Holder holder = lock.holder().value_or(report::Holder{});
    const TimestampTz now = GetCurrentTimestamp();
    report::in_progress(key, holder, core::retry_after(now - holder.since.value_or(now)));
}

}  // namespace

pg::Found settled(const pg::KeyName& name, pg::KeyLock& lock, std::int64_t wait) {
    const TimestampTz deadline = GetCurrentTimestamp() + wait;
    if (!lock.try_acquire() && !lock.acquire_by(deadline)) refuse_in_flight(lock, name.key);
    for (;;) {
        const pg::Records records = pg::Records::to_write();
        const pg::Found found = pg::probe(records, name);
        records.close();
        if (!TransactionIdIsValid(found.working)) return found;
        if (!pg::wait_for_transaction(found.working, deadline)) refuse_in_flight(lock, name.key);
    }
}

}  // namespace idem::api
