#include "pg/server/lock.hpp"

#include "pg/server/compat.hpp"
#include "pg/server/subtransaction.hpp"

namespace idem::pg {
namespace {

// The last field of an advisory lock's tag, pg_locks.objsubid, by which sql/health.sql finds the
// key locks. The server uses the classes 1 and 2, Citus 4 to 16.
constexpr std::uint16_t lock_class = 7651;

// Makes the (sub)transaction the owner of a lock, rather than the portal or the function call, so
// that ROLLBACK TO releases the lock and a later statement can.
template <class Work>
auto as_transaction_owner(Work work) {
    ResourceOwner before = std::exchange(CurrentResourceOwner, CurTransactionResourceOwner);
    const auto result = work();
    CurrentResourceOwner = before;
    return result;
}

// A wait on the latch ends at least this often, because not every end of a lease is signalled.
constexpr std::int64_t longest_wait = 100'000;
constexpr int longest_wait_in_milliseconds = longest_wait / 1000;
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

int milliseconds_until(std::int64_t deadline) {
    const std::int64_t left = deadline - steady_now();
    return static_cast<int>(std::clamp<std::int64_t>((left + 999) / 1000, 1, INT_MAX));
}

// When a backend's transaction began. It is read from the status snapshot, which the server keeps
// for the rest of a transaction by default; so the snapshot is dropped first.
std::optional<TimestampTz> transaction_start(int pid) {
    pgstat_clear_backend_activity_snapshot();
    const int backends = pgstat_fetch_stat_numbackends();
    for (int i = 1; i <= backends; ++i) {
        const LocalPgBackendStatus* local = pgstat_get_local_beentry_by_index(i);
        if (local != nullptr && local->backendStatus.st_procpid == pid &&
            local->backendStatus.st_xact_start_timestamp != 0)
            return local->backendStatus.st_xact_start_timestamp;
    }
    return std::nullopt;
}

report::Holder holder_of_process(int pid) {
    return pid == 0 ? report::Holder{}
                    : report::Holder{pid, transaction_start(pid), std::nullopt, std::nullopt};
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

bool works_elsewhere(TransactionId xid) {
    return !TransactionIdIsCurrentTransactionId(xid) && TransactionIdIsInProgress(xid);
}

TransactionId member_elsewhere(MultiXactId multi, bool only_locked, RowChange change) {
    MultiXactMember* members = nullptr;
    const int count = GetMultiXactIdMembers(multi, &members, false, only_locked);
    for (int i = 0; i < count; ++i) {
        const bool on_key_only = members[i].status == MultiXactStatusForKeyShare;
        if ((change == RowChange::deletion || !on_key_only) && works_elsewhere(members[i].xid))
            return members[i].xid;
    }
    return InvalidTransactionId;
}

}  // namespace

void set_lock_timeout(int milliseconds) {
    Assert(milliseconds > 0);
    char value[16];
    snprintf(value, sizeof value, "%d", milliseconds);
    (void)set_config_option("lock_timeout", value, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE,
                            true, 0, false);
}

KeyLock::KeyLock(std::uint64_t id) {
    SET_LOCKTAG_ADVISORY(tag_, MyDatabaseId, static_cast<std::uint32_t>(id >> 32),
                         static_cast<std::uint32_t>(id), lock_class);
}

bool KeyLock::try_acquire() {
    Assert(IsTransactionState());
    return as_transaction_owner([this] {
               return LockAcquire(&tag_, ExclusiveLock, false, true);
           }) != LOCKACQUIRE_NOT_AVAIL;
}

bool KeyLock::acquire(WaitBound& bound) {
    return try_acquire() || bound.acquire(tag_, ExclusiveLock, true);
}

void KeyLock::release() {
    Assert(is_held());
    (void)as_transaction_owner([this] { return LockRelease(&tag_, ExclusiveLock, false); });
}

bool KeyLock::is_held() const {
    return compat::holds_lock(tag_, ExclusiveLock);
}

std::optional<report::Holder> KeyLock::holder() const {
    int count = 0;
    const VirtualTransactionId* holders = GetLockConflicts(&tag_, ExclusiveLock, &count);
    if (count == 0) return std::nullopt;
    const PGPROC* process = compat::process_running(holders[0]);
    if (process != nullptr) return holder_of_process(process->pid);
    report::Holder holder{};
    bool ambiguous = false;  // there may be more than one prepared transaction of this id
    const TransactionId xid = TwoPhaseGetXidByVirtualXID(holders[0], &ambiguous);
    if (TransactionIdIsValid(xid) && !ambiguous) holder.prepared = xid;
    return holder;
}

// Every wait asks this first. Raises 55P03 when it is the session's bound that has passed. The
// deadline is one of the steady clock: a time of day that is set back would prolong a wait.
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

bool WaitBound::acquire(const LOCKTAG& tag, LOCKMODE mode, bool keep) {
    if (is_over()) return false;
    const LOCKTAG* at = &tag;
    const auto wait = [at, mode, keep] {
        (void)LockAcquire(at, mode, false, false);
        if (!keep) LockRelease(at, mode, false);
    };
    if (wait_in_subtransaction(milliseconds_until(deadline_), wait)) return true;
    if (end_ == core::WaitEnd::lock_timeout) raise_lock_timeout();
    return false;
}

bool KeyLock::wait_for_holder(WaitBound& bound) const {
    if (bound.is_over()) return false;
    int count = 0;
    const VirtualTransactionId* holders = GetLockConflicts(&tag_, ExclusiveLock, &count);
    if (count == 0) return true;
    const VirtualTransactionId holder = holders[0];
    const int left = std::min(milliseconds_until(bound.deadline_), longest_wait_in_milliseconds);
    (void)wait_in_subtransaction(left, [holder] { (void)VirtualXactLock(holder, true); });
    return true;
}

// Does as XactLockTableWait(), whose timeout would begin anew with each lock. The lock of a
// subtransaction is released when it ends; its parent must then be waited for.
bool WaitBound::wait_for(const RowWriter& writer) {
    Assert(writer.valid() && !TransactionIdIsCurrentTransactionId(writer.xid));
    LOCKTAG tag;
    if (writer.speculative_token != 0) {
        SET_LOCKTAG_SPECULATIVE_INSERTION(tag, writer.xid, writer.speculative_token);
        return acquire(tag, ShareLock, false);
    }
    TransactionId xid = writer.xid;
    for (;;) {
        SET_LOCKTAG_TRANSACTION(tag, xid);
        if (!acquire(tag, ShareLock, false)) return false;
        if (!TransactionIdIsInProgress(xid)) return true;
        const TransactionId topmost = SubTransGetTopmostTransaction(xid);
        // It runs, but has not taken its transaction lock yet.
        if (topmost == xid) pg_usleep(1000);
        xid = topmost;
    }
}

bool WaitBound::wait_for(Event event, TimestampTz until) {
    if (is_over()) return false;
    return announce_wait(event) || wait_on_latch(until);
}

bool WaitBound::wait_on_latch(TimestampTz until) {
    if (is_over()) return false;
    if (lease_wait_event == 0) lease_wait_event = compat::wait_event("IdemLease");
    const std::int64_t left = std::min(until - GetCurrentTimestamp(), deadline_ - steady_now());
    const auto ms =
        static_cast<long>((std::clamp<std::int64_t>(left, 1, longest_wait) + 999) / 1000);
    (void)WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, ms, lease_wait_event);
    ResetLatch(MyLatch);
    CHECK_FOR_INTERRUPTS();
    return true;
}

// A running transaction without a process is a prepared one.
report::Holder holder_of(TransactionId xid) {
    if (!TransactionIdIsValid(xid) || !TransactionIdIsInProgress(xid)) return {};
    const TransactionId topmost = SubTransGetTopmostTransaction(xid);
    report::Holder holder = holder_of_process(BackendXidGetPid(topmost));
    if (!holder.pid) holder.prepared = topmost;
    return holder;
}

TM_Result try_lock_row(Relation relation, ItemPointerData tid, RowChange change) {
    Assert(ItemPointerIsValid(&tid));
    TM_FailureData failure;
    TupleTableSlot* slot = table_slot_create(relation, nullptr);
    const TM_Result result = table_tuple_lock(
        relation, &tid, SnapshotSelf, slot, GetCurrentCommandId(true),
        change == RowChange::deletion ? LockTupleExclusive : LockTupleNoKeyExclusive, LockWaitSkip,
        0, &failure);
    ExecDropSingleTupleTableSlot(slot);
    return result;
}

TransactionId transaction_at(Relation relation, ItemPointerData tid, RowChange change) {
    HeapTupleData tuple;
    Buffer buffer;
    tuple.t_self = tid;
    if (!heap_fetch(relation, SnapshotAny, &tuple, &buffer, false)) return InvalidTransactionId;
    LockBuffer(buffer, BUFFER_LOCK_SHARE);
    const TransactionId xmax = HeapTupleHeaderGetRawXmax(tuple.t_data);
    const std::uint16_t mask = tuple.t_data->t_infomask;
    UnlockReleaseBuffer(buffer);

    if ((mask & HEAP_XMAX_INVALID) != 0) return InvalidTransactionId;
    const bool only_locked = HEAP_XMAX_IS_LOCKED_ONLY(mask);
    if ((mask & HEAP_XMAX_IS_MULTI) != 0) return member_elsewhere(xmax, only_locked, change);
    const bool on_key_only = only_locked && HEAP_XMAX_IS_KEYSHR_LOCKED(mask);
    if (change == RowChange::update && on_key_only) return InvalidTransactionId;
    return works_elsewhere(xmax) ? xmax : InvalidTransactionId;
}

}  // namespace idem::pg
