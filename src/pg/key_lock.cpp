#include "pg/key_lock.hpp"

#include "pg/compat.hpp"
#include "pg/prepared.hpp"
#include "pg/secret.hpp"

namespace idem::pg {
namespace {

// The advisory lock classes 1 and 2 are the server's own, 4 to 16 Citus'.
constexpr std::uint16_t lock_class = 0x1DE3;

// Locks belong to the (sub)transaction rather than to the portal or function call that asks, so
// that ROLLBACK TO frees them and a later statement may.
class AsTransactionOwner {
  public:
    AsTransactionOwner() : before_(CurrentResourceOwner) {
        CurrentResourceOwner = CurTransactionResourceOwner;
    }
    void restore() const { CurrentResourceOwner = before_; }

  private:
    ResourceOwner before_;
};

}  // namespace

KeyLock::KeyLock(const core::Digest& digest) {
    std::uint64_t id;
    if (!core::lock_id(secrets().lock_seed, digest, id)) report::crypto_failure();
    SET_LOCKTAG_ADVISORY(tag_, MyDatabaseId, static_cast<std::uint32_t>(id >> 32),
                         static_cast<std::uint32_t>(id), lock_class);
}

bool KeyLock::try_acquire() {
    const AsTransactionOwner owner;
    const LockAcquireResult result = LockAcquire(&tag_, ExclusiveLock, false, true);
    owner.restore();
    return result != LOCKACQUIRE_NOT_AVAIL;
}

bool KeyLock::acquire(const WaitBound& bound) {
    return try_acquire() || bound.wait_for_lock(tag_, ExclusiveLock);
}

void KeyLock::release() {
    const AsTransactionOwner owner;
    LockRelease(&tag_, ExclusiveLock, false);
    owner.restore();
}

std::optional<report::Holder> KeyLock::holder() const {
    int count = 0;
    const VirtualTransactionId* holders = GetLockConflicts(&tag_, ExclusiveLock, &count);
    if (count == 0) return std::nullopt;
    const PGPROC* process = compat::process_running(holders[0]);
    if (process != nullptr) return holder_of_process(process->pid);
    report::Holder unknown{};
    if (const TransactionId xid = prepared_transaction(holders[0]); TransactionIdIsValid(xid))
        unknown.prepared = xid;
    return unknown;
}

}  // namespace idem::pg
