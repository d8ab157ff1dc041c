#include "pg/store/key_lock.hpp"

#include "pg/server/compat.hpp"
#include "pg/server/subtransaction.hpp"
#include "pg/store/secret.hpp"

extern "C" {
#include "access/twophase.h"
}

namespace idem::pg {
namespace {

// The last field of an advisory lock's tag, pg_locks.objsubid, by which sql/health.sql finds the
// key locks. The server uses the classes 1 and 2, Citus 4 to 16.
constexpr std::uint16_t lock_class = 7651;

}  // namespace

KeyLock::KeyLock(const core::Digest& digest) {
    std::uint64_t id;
    if (!core::lock_id(secrets().lock_seed, digest, id)) report::crypto_failure();
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
    return try_acquire() || bound.acquire(tag_, ExclusiveLock);
}

void KeyLock::release() {
    Assert(is_held());
    (void)as_transaction_owner([this] { return LockRelease(&tag_, ExclusiveLock, false); });
}

bool KeyLock::is_held() const {
    return compat::holds_lock(tag_, ExclusiveLock);
}

std::optional<Holder> KeyLock::holder() const {
    int count = 0;
    const VirtualTransactionId* holders = GetLockConflicts(&tag_, ExclusiveLock, &count);
    if (count == 0) return std::nullopt;
    const PGPROC* process = compat::process_running(holders[0]);
    if (process != nullptr) return holder_of_process(process->pid);
    Holder holder{};
    bool ambiguous = false;  // there may be more than one prepared transaction of this id
    const TransactionId xid = TwoPhaseGetXidByVirtualXID(holders[0], &ambiguous);
    if (TransactionIdIsValid(xid) && !ambiguous) holder.prepared = xid;
    return holder;
}

bool KeyLock::wait_for_holder(WaitBound& bound) const {
    if (bound.is_over()) return false;
    int count = 0;
    const VirtualTransactionId* holders = GetLockConflicts(&tag_, ExclusiveLock, &count);
    if (count > 0) bound.wait_briefly_for(holders[0]);
    return true;
}

}  // namespace idem::pg
