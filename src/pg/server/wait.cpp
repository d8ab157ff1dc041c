#include "pg/server/wait.hpp"

#include "pg/server/compat.hpp"
#include "pg/server/subtransaction.hpp"

namespace idem::pg {
namespace {

// A wait on the latch ends at least this often, because not every end of a lease is signalled.
constexpr std::int64_t longest_look_away = 100'000;  // microseconds
constinit std::uint32_t lease_wait_event = 0;

// As the server ends a wait for a lock, also where the wait is for something else.
[[noreturn]] void raise_lock_timeout() {
    ereport(ERROR, (errcode(ERRCODE_LOCK_NOT_AVAILABLE),
                    errmsg("canceling statement due to lock timeout")));
}

// What is left of the statement's time by the server's own timer, which measures the time of day.
// An outer statement may have started it under another setting than the one that holds now.
std::optional<std::int64_t> statement_time_left() {
    if (!get_timeout_active(STATEMENT_TIMEOUT)) return std::nullopt;
    return get_timeout_finish_time(STATEMENT_TIMEOUT) - GetCurrentTimestamp();
}

int milliseconds_of(std::int64_t usecs) {
    return static_cast<int>(std::clamp<std::int64_t>((usecs + 999) / 1000, 1, INT_MAX));
}

// Waits for a lock, in a subtransaction with a lock_timeout of its own, because LockAcquire() can
// give up only by raising an error. Returns false after the timeout. If the statement's came at the
// same time, the server has reported the one that was due first, and has forgotten the other.
template <class Wait>
bool wait_in_subtransaction(int milliseconds, Wait wait) {
    const bool limited = get_timeout_active(STATEMENT_TIMEOUT);
    ErrorData* error = in_subtransaction([milliseconds, wait] {
        set_lock_timeout(milliseconds);
        wait();
        // Catch a timeout that fired as the lock was granted; it would cancel a later wait.
        CHECK_FOR_INTERRUPTS();
    });
    if (error == nullptr) return true;
    if (error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE) ReThrowError(error);
    FreeErrorData(error);
    if (limited && !get_timeout_active(STATEMENT_TIMEOUT))
        ereport(ERROR, (errcode(ERRCODE_QUERY_CANCELED),
                        errmsg("canceling statement due to statement timeout")));
    return false;
}

}  // namespace

void wait_on_latch(std::int64_t usecs, std::uint32_t wait_event) {
    (void)WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
                    milliseconds_of(usecs), wait_event);
    ResetLatch(MyLatch);
}

void set_lock_timeout(int milliseconds) {
    Assert(milliseconds > 0);
    char value[16];
    snprintf(value, sizeof value, "%d", milliseconds);
    (void)set_config_option("lock_timeout", value, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE,
                            true, 0, false);
}

// The deadline is one of the steady clock: a time of day that is set back would prolong a wait.
bool WaitBound::is_over() {
    const std::int64_t now = steady_now();
    if (deadline_ == 0) {
        const core::WaitLimit limit =
            core::wait_limit(wait_, std::int64_t{LockTimeout} * 1000, statement_time_left());
        deadline_ = now + limit.duration;
        end_ = limit.end;
    }
    if (now < deadline_) return false;
    if (end_ == core::WaitEnd::lock_timeout) raise_lock_timeout();
    return true;
}

bool WaitBound::acquire(const LOCKTAG& tag, LOCKMODE mode) {
    if (is_over()) return false;
    const LOCKTAG* at = &tag;
    const auto wait = [at, mode] {
        (void)LockAcquire(at, mode, false, false);
        if (mode == ShareLock) LockRelease(at, mode, false);
    };
    if (wait_in_subtransaction(milliseconds_of(deadline_ - steady_now()), wait)) return true;
    if (end_ == core::WaitEnd::lock_timeout) raise_lock_timeout();
    return false;
}

void WaitBound::wait_briefly_for(const VirtualTransactionId& transaction) {
    Assert(deadline_ != 0);
    constexpr int longest = longest_look_away / 1000;
    (void)wait_in_subtransaction(std::min(milliseconds_of(deadline_ - steady_now()), longest),
                                 [transaction] { (void)VirtualXactLock(transaction, true); });
}

// Does as XactLockTableWait(), whose timeout would begin anew with each lock. The lock of a
// subtransaction is released when it ends; its parent must then be waited for.
bool WaitBound::wait_for(const RowWriter& writer) {
    Assert(writer.valid() && !TransactionIdIsCurrentTransactionId(writer.xid));
    LOCKTAG tag;
    if (writer.speculative_token != 0) {
        SET_LOCKTAG_SPECULATIVE_INSERTION(tag, writer.xid, writer.speculative_token);
        return acquire(tag, ShareLock);
    }
    TransactionId xid = writer.xid;
    for (;;) {
        SET_LOCKTAG_TRANSACTION(tag, xid);
        if (!acquire(tag, ShareLock)) return false;
        if (!TransactionIdIsInProgress(xid)) return true;
        const TransactionId topmost = SubTransGetTopmostTransaction(xid);
        // It runs, but has not taken its transaction lock yet.
        if (topmost == xid) pg_usleep(1000);
        xid = topmost;
    }
}

bool WaitBound::wait_for(Event event, TimestampTz until) {
    if (is_over()) return false;
    return announce_wait(event) || wait_for_latch(until);
}

bool WaitBound::wait_for_latch(TimestampTz until) {
    if (is_over()) return false;
    if (lease_wait_event == 0) lease_wait_event = compat::wait_event("IdemLease");
    const std::int64_t left = std::min(until - GetCurrentTimestamp(), deadline_ - steady_now());
    wait_on_latch(std::min(left, longest_look_away), lease_wait_event);
    CHECK_FOR_INTERRUPTS();
    return true;
}

}  // namespace idem::pg
