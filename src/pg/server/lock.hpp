// The key lock, and every bounded wait: for a lock, a transaction, a lease or a row.
//
// The key lock is one transaction-level heavyweight lock per key. It is the fast path that keeps
// two claims of a key apart; the proof is the unique index. It belongs to the current
// (sub)transaction: the end of that, ROLLBACK TO and a crash release it, and PREPARE TRANSACTION
// carries it along. It is released early only in the call that took it, when the claim turns out to
// be a replay or has to wait for something else.
//
// One bound serves all waits of a call together: the caller's own, the session's lock_timeout, or
// what statement_timeout leaves, whichever is the shortest. It counts from the moment at which the
// first wait begins: most calls never wait, and then no clock is read. A wait returns false at the
// caller's bound and at the statement's, which leaves time to answer; it raises 55P03 at the
// session's, as every wait for a lock does. Waits for locks take part in deadlock detection.
// Cancelling the query or terminating the backend ends any wait and leaves nothing behind.
//
// No call waits for a transaction or a lease while it holds a key lock, so that the other side can
// still claim the key. The exception is a call that has to write a row which another transaction is
// changing.
#pragma once

#include "core/duration.hpp"
#include "pg/server/postgres.hpp"
#include "pg/server/report.hpp"
#include "pg/server/values.hpp"
#include "pg/server/wakeup.hpp"

namespace idem::pg {

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

    // Waits for the end of the transaction, or for the decision about its speculative insertion.
    bool wait_for(const RowWriter& writer);
    // Waits for the event, until then at most. Comes back at once when the event was not announced
    // before, and else after a tenth of a second at the latest; the caller looks again each time,
    // and withdraws the announcement (pg/server/wakeup) when it stops waiting.
    bool wait_for(Event event, TimestampTz until);
    // For what has no event.
    bool wait_briefly() { return wait_on_latch(GetCurrentTimestamp() + 1000); }

  private:
    bool is_over();
    bool acquire(const LOCKTAG& tag, LOCKMODE mode, bool keep);
    bool wait_on_latch(TimestampTz until);

    friend class KeyLock;

    std::int64_t wait_;
    report::WaitSetBy set_by_;
    // Of the waits that have begun:
    std::int64_t deadline_ = 0;  // by the steady clock; 0 before the first wait
    core::WaitEnd end_ = core::WaitEnd::wait;
};
static_assert(std::is_trivially_destructible_v<WaitBound>);

class KeyLock {
  public:
    // See key_lock() in pg/store/secret for the lock of a key.
    explicit KeyLock(std::uint64_t id);

    bool try_acquire();
    // Returns false when the bound came first.
    bool acquire(WaitBound& bound);
    void release();
    // Waits, without taking the lock, for the end of the transaction that holds it. Comes back
    // after a tenth of a second at the latest, because the holder may have released the lock
    // without ending, and the caller looks again. This is too short to detect a deadlock; the bound
    // ends it. Returns false when the bound came first.
    bool wait_for_holder(WaitBound& bound) const;

    // Whether this backend holds the lock.
    bool is_held() const;
    // What is known of another transaction that holds the lock; nothing when none does.
    std::optional<report::Holder> holder() const;

  private:
    LOCKTAG tag_;
};
static_assert(std::is_trivially_destructible_v<KeyLock>);

// What is known of the process that runs the transaction. Without a pid when there is none.
report::Holder holder_of(TransactionId xid);

// What a caller is about to do to a row. Every row lock keeps out a deletion; only a lock on more
// than the key keeps out an update, which changes no key.
enum class RowChange : bool { update, deletion };

// Another transaction that keeps the row from being changed; InvalidTransactionId when none does.
TransactionId transaction_at(Relation relation, ItemPointerData tid, RowChange change);

// What became of a row that was to be changed.
struct ChangeResult {
    TM_Result result;          // TM_WouldBlock: the row was not free within the bound
    TransactionId in_the_way;  // then: the transaction that kept it, as far as that is known
};

// Locks a row for the change without waiting. TM_WouldBlock when another transaction has locked it.
TM_Result try_lock_row(Relation relation, ItemPointerData tid, RowChange change);

// Calls change() for a row that a transaction without the key lock may be changing too. The row is
// locked first, so that all waiting is done here and change() does not wait.
template <class Change>
ChangeResult change_row(Relation relation, ItemPointerData tid, RowChange kind, WaitBound& bound,
                        Change change) {
    for (;;) {
        const TM_Result locked = try_lock_row(relation, tid, kind);
        if (locked == TM_Ok) return {change(), InvalidTransactionId};
        if (locked != TM_WouldBlock) return {locked, InvalidTransactionId};
        const TransactionId other = transaction_at(relation, tid, kind);
        // None: it has just ended, or others queue for the row.
        const bool waited =
            TransactionIdIsValid(other) ? bound.wait_for({other}) : bound.wait_briefly();
        if (!waited) return {TM_WouldBlock, other};
    }
}

}  // namespace idem::pg
