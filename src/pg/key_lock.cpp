#include "pg/key_lock.hpp"

#include "core/lock_id.hpp"
#include "pg/compat.hpp"
#include "pg/prepared.hpp"
#include "pg/secret.hpp"
#include "pg/subtransaction.hpp"

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

LockAcquireResult acquire(const LOCKTAG& tag, bool dont_wait) {
    const AsTransactionOwner owner;
    const LockAcquireResult result = LockAcquire(&tag, ExclusiveLock, false, dont_wait);
    owner.restore();
    return result;
}

// Whole milliseconds, at least one: a lock_timeout of 0 would wait for ever.
int milliseconds_until(TimestampTz deadline) {
    const TimestampTz left = deadline - GetCurrentTimestamp();
    return static_cast<int>(std::clamp<TimestampTz>((left + 999) / 1000, 1, INT_MAX));
}

// Runs a wait under a lock_timeout of our own, in a subtransaction, because LockAcquire can only
// give up by raising an error.
template <class Wait>
bool bounded(TimestampTz deadline, Wait wait) {
    if (GetCurrentTimestamp() >= deadline) return false;
    const int ours = milliseconds_until(deadline);
    const bool deadline_is_first = LockTimeout == 0 || ours < LockTimeout;
    ErrorData* error = in_subtransaction([=] {
        if (deadline_is_first) {
            char value[16];
            snprintf(value, sizeof value, "%d", ours);
            (void)set_config_option("lock_timeout", value, PGC_USERSET, PGC_S_SESSION,
                                    GUC_ACTION_SAVE, true, 0, false);
        }
        wait();
    });
    if (error == nullptr) return true;
    if (!deadline_is_first || error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE) ReThrowError(error);
    FreeErrorData(error);
    return false;
}

// When a backend's transaction began. The status snapshot that it is read from is kept for the rest
// of a transaction by default, so it is dropped first.
std::optional<TimestampTz> transaction_start(int pid) {
    pgstat_clear_backend_activity_snapshot();
    const int backends = pgstat_fetch_stat_numbackends();
    for (int i = 1; i <= backends; ++i) {
        const LocalPgBackendStatus* local = compat::backend_status(i);
        if (local != nullptr && local->backendStatus.st_procpid == pid &&
            local->backendStatus.st_xact_start_timestamp != 0)
            return local->backendStatus.st_xact_start_timestamp;
    }
    return std::nullopt;
}

}  // namespace

KeyLock::KeyLock(const core::Digest& digest) {
    std::uint64_t id;
    if (!core::lock_id(secrets().lock_seed, digest, id)) report::crypto_failure();
    SET_LOCKTAG_ADVISORY(tag_, MyDatabaseId, static_cast<std::uint32_t>(id >> 32),
                         static_cast<std::uint32_t>(id), lock_class);
}

bool KeyLock::try_acquire() {
    return acquire(tag_, true) != LOCKACQUIRE_NOT_AVAIL;
}

bool KeyLock::acquire_by(TimestampTz deadline) {
    return bounded(deadline, [this] { acquire(tag_, false); });
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
    if (process == nullptr) {
        report::Holder unknown{};
        if (const TransactionId xid = prepared_transaction(holders[0]); TransactionIdIsValid(xid))
            unknown.prepared = xid;
        return unknown;
    }
    return report::Holder{process->pid, transaction_start(process->pid), std::nullopt};
}

bool wait_for_transaction(TransactionId xid, TimestampTz deadline) {
    return bounded(deadline, [xid] { XactLockTableWait(xid, nullptr, nullptr, XLTW_None); });
}

}  // namespace idem::pg
