// The key lock: one transaction-level heavyweight lock per key.
//
// It is the fast path that keeps two claims of a key apart; the proof is the unique index. It
// belongs to the current (sub)transaction: the end of that, ROLLBACK TO and a crash release it, and
// PREPARE TRANSACTION carries it along. It is released early only in the call that took it, when
// the claim turns out to be a replay or has to wait for something else.
//
// No call waits for a transaction or a lease while it holds a key lock, so that the other side can
// still claim the key. The exception is a call that has to write a row which another transaction is
// changing.
#pragma once

#include "pg/server/wait.hpp"

namespace idem::pg {

class KeyLock {
  public:
    // The lock of the key or source with this digest.
    explicit KeyLock(const core::Digest& digest);

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
    std::optional<Holder> holder() const;

  private:
    LOCKTAG tag_;
};
static_assert(std::is_trivially_destructible_v<KeyLock>);

}  // namespace idem::pg
