// The key lock: one transaction-level heavyweight lock a key.
//
// It is the fast path that keeps two claimers of a key apart; the proof is the unique index. The
// lock belongs to the current (sub)transaction: it goes with its end, with ROLLBACK TO, with a
// crash, and is carried by PREPARE TRANSACTION. A lock taken in a call is released early only in
// the same call, when the claim turns out to be a replay, or has to wait for something else.
#pragma once

#include "core/digest.hpp"
#include "pg/report.hpp"
#include "pg/server.hpp"
#include "pg/waiting.hpp"

namespace idem::pg {

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

}  // namespace idem::pg
