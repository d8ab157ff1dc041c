// The key lock: one transaction-level heavyweight lock a key, and the only place that waits.
//
// It is the fast path that keeps two claimers of a key apart; the proof is the unique index. The
// lock belongs to the current (sub)transaction: it goes with its end, with ROLLBACK TO, with a
// crash, and is carried by PREPARE TRANSACTION. A lock taken in a call is released early only in
// the same call, when the claim turns out to be a replay.
//
// Waits are bounded: by the caller's deadline, and by the session's own lock_timeout if that is
// shorter (which then raises 55P03 as always). They take part in deadlock detection, and cancel and
// terminate end them with nothing left behind.
#pragma once

#include "core/digest.hpp"
#include "pg/report.hpp"
#include "pg/server.hpp"

namespace idem::pg {

class KeyLock {
  public:
    explicit KeyLock(const core::Digest& digest);

    bool try_acquire();
    // False when the deadline passed first.
    bool acquire_by(TimestampTz deadline);
    void release();

    // Who holds it, as far as that can be told; nothing when nobody else does.
    std::optional<report::Holder> holder() const;

  private:
    LOCKTAG tag_;
};
static_assert(std::is_trivially_destructible_v<KeyLock>);

// Waits for the end of a transaction; false when the deadline passed first.
bool wait_for_transaction(TransactionId xid, TimestampTz deadline);

}  // namespace idem::pg
