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
    return over || !found.writer.valid();
}

}  // namespace

void refuse_in_flight(std::string_view key, const report::Holder& holder) {
    const TimestampTz now = GetCurrentTimestamp();
    const TimestampTz age = now - holder.since.value_or(now);
    report::in_progress(
        key, holder,
        holder.lease_end ? core::retry_after(age, *holder.lease_end - now) : core::retry_after(age),
        report::WaitSetBy::scope);
}

void acquire(pg::KeyLock& lock, std::string_view key, const pg::WaitBound& bound) {
    if (!lock.acquire(bound)) refuse_in_flight(key, lock.holder().value_or(report::Holder{}));
}

void give_way(pg::KeyLock& lock, std::string_view key, const pg::RowWriter& work,
              const pg::WaitBound& bound) {
    lock.release();
    if (!bound.wait_for(work)) refuse_in_flight(key, pg::holder_of(work.xid));
    acquire(lock, key, bound);
}

void check_written(std::string_view key, const pg::WriteResult& writing) {
    if (writing.outcome == pg::WriteOutcome::blocked)
        refuse_in_flight(key, pg::holder_of(writing.in_the_way));
}

pg::Found settled(const pg::KeyName& name, pg::KeyLock& lock, const pg::WaitBound& bound) {
    acquire(lock, name.key, bound);
    for (;;) {
        const pg::Records records = pg::Records::to_write();
        const pg::Found found = pg::probe(records, name);
        records.close();
        if (is_settled(found)) return found;
        give_way(lock, name.key, found.writer, bound);
    }
}

}  // namespace idem::api
