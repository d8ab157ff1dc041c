// Every bounded wait: for a lock, a transaction, a lease or a row; and the clock that bounds it.
//
// One bound serves all waits of a call together: the caller's own, the session's lock_timeout, or
// what statement_timeout leaves, whichever is the shortest. It counts from the moment at which the
// first wait begins: most calls never wait, and then no clock is read. A wait returns false at the
// caller's bound and at the statement's, which leaves time to answer; it raises 55P03 at the
// session's, as every wait for a lock does. Waits for locks take part in deadlock detection.
// Cancelling the query or terminating the backend ends any wait and leaves nothing behind.
#pragma once

#include "core/duration.hpp"
#include "pg/server/report.hpp"
#include "pg/server/wakeup.hpp"

namespace idem::pg {

// Microseconds of the clock that is never set. Only differences have a meaning, also between two
// processes; those of instr_time may be of different clocks there, as a setting says.
inline std::int64_t steady_now() {
    timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return std::int64_t{now.tv_sec} * USECS_PER_SEC + now.tv_nsec / 1000;
}

// Waits for the latch, and resets it, or for the microseconds. What the interrupts ask for is left
// to the caller.
void wait_on_latch(std::int64_t usecs, std::uint32_t wait_event);

// The transaction that is inserting, deleting or replacing a row; not valid when there is none.
struct RowWriter {
    TransactionId xid = InvalidTransactionId;
    std::uint32_t speculative_token = 0;  // of a row that may be taken back, else 0

    bool valid() const { return TransactionIdIsValid(xid); }
};

// For all locks that are waited for, until the subtransaction ends. 0 would mean no timeout.
void set_lock_timeout(int milliseconds);

class WaitBound {
  public:
    // wait microseconds from the first wait on; 0 does not wait.
    explicit WaitBound(std::int64_t wait, report::WaitSetBy set_by = report::WaitSetBy::scope)
        : wait_(wait), set_by_(set_by) {
        Assert(wait >= 0);
    }
    // Bounded by the session's timeouts alone, as an INSERT is.
    static WaitBound none() { return WaitBound(core::max_duration); }

    // What a caller can change to wait longer, once a wait has returned false.
    report::WaitSetBy set_by() const {
        return end_ == core::WaitEnd::statement_timeout ? report::WaitSetBy::statement_timeout
                                                        : set_by_;
    }

    // Every wait asks this first. Raises 55P03 when it is the session's bound that has passed.
    bool is_over();
    // Takes the lock; a share lock is only waited for, and released at once.
    bool acquire(const LOCKTAG& tag, LOCKMODE mode);
    // Unless that is over: waits for the end of the transaction, for a tenth of a second at most.
    void wait_briefly_for(const VirtualTransactionId& transaction);
    // Waits for the end of the transaction, or for the decision about its speculative insertion.
    bool wait_for(const RowWriter& writer);
    // Waits for the event, until then at most. Comes back at once when the event was not announced
    // before, and else after a tenth of a second at the latest; the caller looks again each time,
    // and withdraws the announcement (pg/server/wakeup) when it stops waiting.
    bool wait_for(Event event, TimestampTz until);
    // For what has no event.
    bool wait_briefly() { return wait_for_latch(GetCurrentTimestamp() + 1000); }

  private:
    bool wait_for_latch(TimestampTz until);

    std::int64_t wait_;
    report::WaitSetBy set_by_;
    // Of the waits that have begun:
    std::int64_t deadline_ = 0;  // by the steady clock; 0 before the first wait
    core::WaitEnd end_ = core::WaitEnd::wait;
};
static_assert(std::is_trivially_destructible_v<WaitBound>);

}  // namespace idem::pg
