#include "api/locked_key.hpp"

#include "api/admission.hpp"
#include "core/decision.hpp"
#include "core/duration.hpp"
#include "pg/boundary.hpp"
#include "pg/report.hpp"
#include "pg/secret.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;
using core::Presence;

// ---- A key at rest ------------------------------------------------------------------------------

// An expired row that is being deleted, most likely by the purger, counts as at rest: it does not
// bind the key, whether or not the deletion commits.
bool is_at_rest(const pg::Found& found) {
    const bool expired =
        found.presence == Presence::deleting && found.record.expires <= GetCurrentTimestamp();
    return expired || !found.writer.valid();
}

}  // namespace

pg::Found find_at_rest(const pg::KeyName& name, pg::KeyLock& lock, const pg::WaitBound& bound) {
    acquire(lock, name.key, bound);
    for (;;) {
        const pg::Records records = pg::Records::to_write(name.table);
        pg::check_place(name.scope_id, name.table);
        const pg::Found found = pg::probe(records, name);
        records.close();
        if (is_at_rest(found)) return found;
        pg::free_contents(found.record);  // a call may look many times
        give_way(lock, name.key, found.writer, bound);
    }
}

void acquire(pg::KeyLock& lock, std::string_view key, const pg::WaitBound& bound) {
    if (!lock.acquire(bound)) refuse_in_flight(key, lock.holder().value_or(report::Holder{}));
}

void give_way(pg::KeyLock& lock, std::string_view key, const pg::RowWriter& writer,
              const pg::WaitBound& bound) {
    lock.release();
    if (!bound.wait_for(writer)) refuse_in_flight(key, pg::holder_of(writer.xid));
    acquire(lock, key, bound);
}

bool is_live(const pg::Found& found) {
    return found.presence == Presence::own ||
           (found.presence != Presence::absent && found.record.expires > GetCurrentTimestamp());
}

void check_in_snapshot(const pg::Found& found) {
    if (found.presence != Presence::own && !found.in_snapshot)
        report::serialization_failure(
            "The key's record was committed after this transaction's snapshot was taken.");
}

void check_written(std::string_view key, const pg::WriteResult& writing) {
    if (writing.outcome == pg::WriteOutcome::blocked)
        refuse_in_flight(key, pg::holder_of(writing.in_the_way));
}

bool is_open_here(const core::Digest& digest) {
    const pg::Claim* mine = pg::find_claim(digest);
    return mine != nullptr && mine->phase == pg::Phase::open;
}

report::Holder lease_of(const pg::Record& record) {
    return {.pid = std::nullopt,
            .since = record.created,
            .lease_end = record.lease_end,
            .released = !record.nonce};
}

std::int64_t retry_after(const report::Holder& holder) {
    const TimestampTz now = GetCurrentTimestamp();
    if (holder.released) return std::max<TimestampTz>(*holder.lease_end - now, 0);
    const std::int64_t age = now - holder.since.value_or(now);
    return holder.lease_end ? core::retry_after(age, *holder.lease_end - now)
                            : core::retry_after(age);
}

void refuse_in_flight(std::string_view key, const report::Holder& holder) {
    report::in_progress(key, holder, retry_after(holder), report::WaitSetBy::scope);
}

void refuse_open_here(const pg::KeyName& name, const char* call) {
    if (!is_open_here(name.digest)) return;
    report::claimed_by_this_transaction(
        name.key, psprintf("Release the claim with idem.release(), or call %s in another "
                           "transaction after this one has ended.",
                           call));
}

void replace_record(const pg::KeyName& name, const pg::Found& found, const pg::Record& record,
                    const pg::WaitBound& bound) {
    check_in_snapshot(found);
    const pg::Records records = pg::Records::to_write(name.table);
    const pg::WriteResult writing = pg::write_over(records, name, record, found, bound);
    records.close();
    check_written(name.key, writing);
}

void check_stored_size(const char* what, const pg::Scope& scope,
                       std::initializer_list<const void*> values) {
    Size size = 0;
    for (const void* value : values)
        if (value != nullptr) size += toast_raw_datum_size(PointerGetDatum(value)) - VARHDRSZ;
    if (size > static_cast<Size>(scope.max_answer_size))
        ereport(ERROR,
                (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED), errmsg("%s is too large", what),
                 errdetail("The key's record would hold %zu bytes; \"max_answer_size\" of scope "
                           "\"%s\" allows %d bytes.",
                           size, scope.name, scope.max_answer_size),
                 errhint("Store large values in a table of your own, and pass a reference to them; "
                         "or raise the limit with idem.alter_scope().")));
}

void check_unfinished_size(const char* what, const pg::Scope& scope, const pg::Record& record) {
    check_stored_size(what, scope, {record.request, record.recovery_state, record.error});
}

std::int64_t ttl_of(const pg::Record& record) {
    Assert(record.state == core::State::in_progress);
    return record.expires - record.lease_end.value_or(record.created);
}

TimestampTz expires_after(const pg::Record& record, TimestampTz lease_end) {
    return lease_end + ttl_of(record);
}

}  // namespace idem::api
