// The key lock: one transaction-level heavyweight lock a key.
//
// It is the fast path that keeps two claimers of a key apart; the proof is the unique index. The
// lock belongs to the current (sub)transaction: it goes with its end, with ROLLBACK TO, with a
// crash, and is carried by PREPARE TRANSACTION. A lock taken in a call is released early only in
// the same call, when the claim turns out to be a replay, or has to wait for something else.
//
// Waiting for others, bounded: for a lock, for a transaction, for a lease, for a row.
//
// One bound serves all waits of a call together: the caller's own, or the session's lock_timeout if
// that is shorter, counted from the same moment. At the caller's bound a wait returns false; at the
// session's it raises 55P03, as every wait for a lock does. Waits for locks take part in deadlock
// detection, and cancel and terminate end any wait with nothing left behind.
//
// Nobody waits for a transaction or for a lease with a key lock in hand, so that the other may
// claim the key as well. The exception is who has to write and finds the row in another's hands.
#pragma once

#include "core/digest.hpp"
#include "pg/boundary.hpp"
#include "pg/report.hpp"
#include "pg/server.hpp"

namespace idem::pg {

// Who inserts, deletes or replaces a row; valid() unless nobody does.
struct Work {
    TransactionId xid = InvalidTransactionId;
    std::uint32_t speculative_token = 0;  // of a row that may be taken back; 0: of no such row

    bool valid() const { return TransactionIdIsValid(xid); }
};

class WaitBound {
  public:
    // From now on, so many microseconds; 0 does not wait.
    explicit WaitBound(std::int64_t wait);
    // As an INSERT waits: by the session's lock_timeout alone.
    static WaitBound none();

    bool wait_for_lock(const LOCKTAG& tag, LOCKMODE mode) const;
    // For the end of the transaction, or the decision about its speculative insertion.
    bool wait_for(const Work& work) const;
    // A nap, until then at most: for what nobody signals.
    bool nap(TimestampTz until) const;
    bool nap_briefly() const { return nap(GetCurrentTimestamp() + 1000); }

  private:
    bool is_over() const;
    bool acquire(const LOCKTAG& tag, LOCKMODE mode, bool keep) const;

    TimestampTz deadline_;
    bool is_lock_timeout_;  // the session's bound comes first
};
static_assert(std::is_trivially_destructible_v<WaitBound>);

class KeyLock {
  public:
    explicit KeyLock(const core::Digest& digest);

    bool try_acquire();
    // False when the bound came first.
    bool acquire(const WaitBound& bound);
    void release();

    // Who holds it, as far as that can be told; nothing when nobody else does.
    std::optional<report::Holder> holder() const;

  private:
    LOCKTAG tag_;
};
static_assert(std::is_trivially_destructible_v<KeyLock>);

// What can be told of the process that runs a transaction; pid 0: there is none.
report::Holder holder_of_process(int pid);
report::Holder holder_of(TransactionId xid);

// What is to become of a row: a deletion is kept out by every lock on it, an update that changes no
// key by those on more than the key.
enum class RowChange : bool { update, deletion };

// Another transaction that keeps the row from being changed; none when nobody does.
TransactionId transaction_at(Relation relation, ItemPointerData tid, RowChange change);

struct Changed {
    TM_Result result;          // TM_WouldBlock: not within the bound
    TransactionId in_the_way;  // then: whose transaction it was, as far as that can be told
};

// Locks a row for the change without waiting; TM_WouldBlock when another has it in hand.
TM_Result try_lock_row(Relation relation, ItemPointerData tid, RowChange change);

// Changes a row that somebody past the key lock may have in hand. It is locked first, so that all
// waiting is done here, and the change itself waits for nobody.
template <class Change>
Changed change_row(Relation relation, ItemPointerData tid, RowChange kind, const WaitBound& bound,
                   Change change) {
    for (;;) {
        const TM_Result locked = try_lock_row(relation, tid, kind);
        if (locked == TM_Ok) return {change(), InvalidTransactionId};
        if (locked != TM_WouldBlock) return {locked, InvalidTransactionId};
        const TransactionId other = transaction_at(relation, tid, kind);
        // None: it has just ended, or others queue for the row.
        const bool waited =
            TransactionIdIsValid(other) ? bound.wait_for({other}) : bound.nap_briefly();
        if (!waited) return {TM_WouldBlock, other};
    }
}

}  // namespace idem::pg
