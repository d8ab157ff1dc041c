#include "api/locked_key.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;
using core::Presence;

// An expired row that is being deleted, most likely by the purger, counts as at rest: it does not
// bind the key, whether or not the deletion commits.
bool is_at_rest(const pg::Found& found) {
    const bool expired =
        found.presence == Presence::deleting && found.record.expires() <= GetCurrentTimestamp();
    return expired || !found.writer.valid();
}

}  // namespace

core::FoundRow found_row(const pg::Found& found, const pg::Scope& scope) {
    return {
        .presence = found.presence,
        .in_snapshot = found.in_snapshot,
        .state = found.record.state(),
        .expires = found.record.expires(),
        .lease_end = found.record.lease_end().value_or(0),
        .attempt = found.record.attempt(),
        .max_attempts = scope.max_attempts,
        .extra_attempts = found.record.extra_attempts(),
        .replaced = found.replaced,
    };
}

pg::Found find_at_rest(const pg::Key& key, pg::KeyLock& lock, pg::WaitBound& bound) {
    acquire(lock, key.key, bound);
    for (;;) {
        const pg::Found found = pg::probe(key, pg::Access::write);
        if (is_at_rest(found)) return found;
        found.record.free();  // a call may look many times
        reacquire_after(lock, key.key, found.writer, bound);
    }
}

void acquire(pg::KeyLock& lock, std::string_view key, pg::WaitBound& bound) {
    if (!lock.acquire(bound)) refuse_in_flight(key, lock.holder().value_or(pg::Holder{}), bound);
}

void reacquire_after(pg::KeyLock& lock, std::string_view key, const pg::RowWriter& writer,
                     pg::WaitBound& bound) {
    lock.release();
    if (!bound.wait_for(writer)) refuse_in_flight(key, pg::holder_of(writer.xid), bound);
    acquire(lock, key, bound);
}

bool is_live(const pg::Found& found) {
    return core::binds(found.presence, found.record.expires(), GetCurrentTimestamp());
}

void check_in_snapshot(const pg::Found& found) {
    if (found.presence != Presence::own && !found.in_snapshot) refuse_unseen();
}

void refuse_unseen() {
    report::serialization_failure(
        "The key's record was committed after this transaction's snapshot was taken.");
}

void check_written(std::string_view key, const pg::ChangeResult& writing,
                   const pg::WaitBound& bound) {
    if (writing.result == TM_WouldBlock)
        refuse_in_flight(key, pg::holder_of(writing.in_the_way), bound);
}

bool is_open_here(const core::Digest& digest) {
    const pg::Claim* mine = pg::find_claim(digest);
    return mine != nullptr && mine->phase == pg::Phase::open;
}

pg::Holder lease_of(const pg::Record& record) {
    return {.pid = std::nullopt,
            .since = record.created(),
            .lease_end = record.lease_end(),
            .released = !record.nonce()};
}

std::int64_t retry_after(const pg::Holder& holder) {
    const TimestampTz now = GetCurrentTimestamp();
    if (holder.released) return std::max<TimestampTz>(*holder.lease_end - now, 0);
    const std::int64_t age = now - holder.since.value_or(now);
    return holder.lease_end ? core::retry_after(age, *holder.lease_end - now)
                            : core::retry_after(age);
}

void refuse_in_flight(std::string_view key, const pg::Holder& holder, const pg::WaitBound& bound) {
    report::in_progress(key, holder, retry_after(holder), bound.set_by());
}

void refuse_open_here(const pg::Key& key, const char* function) {
    if (!is_open_here(key.digest)) return;
    report::claimed_by_this_transaction(
        key.key, psprintf("Release the claim with idem.release(), or call idem.%s() in another "
                          "transaction after this one has ended.",
                          function));
}

void replace_record(const pg::Key& key, const pg::Found& found, const pg::NewRecord& record,
                    pg::WaitBound& bound) {
    check_in_snapshot(found);
    check_written(key.key, pg::write_over(key.table, record, found, bound), bound);
}

void check_size(const char* what, const pg::Scope& scope,
                std::initializer_list<const void*> values) {
    Size size = 0;
    for (const void* value : values)
        if (value != nullptr) size += toast_raw_datum_size(PointerGetDatum(value)) - VARHDRSZ;
    if (size > static_cast<Size>(scope.max_answer_size))
        ereport(ERROR,
                (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED), errmsg("%s is too large", what),
                 errdetail("It has %zu bytes; \"max_answer_size\" of scope \"%s\" allows %d bytes.",
                           size, scope.name, scope.max_answer_size),
                 errhint("Store large values in a table of your own, and pass a reference to them; "
                         "or raise the limit with idem.alter_scope().")));
}

// A superuser may have written infinity, to keep the record or its lease: the difference would be
// no time, and the next version would have expired at once.
std::int64_t ttl_of(const pg::Record& record) {
    Assert(record.state() == core::State::in_progress);
    const TimestampTz created = record.created();
    const TimestampTz lease_end = record.lease_end().value_or(created);
    return std::min(record.expires(), created + 2 * core::max_duration) -
           (TIMESTAMP_NOT_FINITE(lease_end) ? created : lease_end);
}

}  // namespace idem::api
