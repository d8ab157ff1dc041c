#include "worker/worker.hpp"

#include "pg/server/values.hpp"

namespace idem::worker {
namespace {

struct Shared {
    slock_t lock;
    Task task;  // the newest
};

constinit Shared* shared = nullptr;

}  // namespace

void catch_signals() {
    pqsignal(SIGHUP, SignalHandlerForConfigReload);
    pqsignal(SIGTERM, die);
    BackgroundWorkerUnblockSignals();
}

void wait_on_latch(std::int64_t usecs, std::uint32_t wait_event) {
    const auto ms = static_cast<long>(std::clamp<std::int64_t>((usecs + 999) / 1000, 1, INT_MAX));
    (void)WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, ms, wait_event);
    ResetLatch(MyLatch);
    if (ProcDiePending) proc_exit(1);
    CHECK_FOR_INTERRUPTS();
    if (ConfigReloadPending) {
        ConfigReloadPending = false;
        ProcessConfigFile(PGC_SIGHUP);
    }
}

Task open_task(Oid database, const core::Clocks& clocks) {
    Assert(shared != nullptr && OidIsValid(database));
    SpinLockAcquire(&shared->lock);
    shared->task = {shared->task.number + 1, database, clocks, Outcome::absent, {}};
    const Task task = shared->task;
    SpinLockRelease(&shared->lock);
    return task;
}

Task find_task(std::int32_t number) {
    SpinLockAcquire(&shared->lock);
    Task task = shared->task;
    SpinLockRelease(&shared->lock);
    if (task.number != number) task.database = InvalidOid;
    return task;
}

void report_task(const Task& task) {
    Assert(shared != nullptr && task.counts.seen >= task.counts.deleted);
    SpinLockAcquire(&shared->lock);
    if (shared->task.number == task.number) shared->task = task;
    SpinLockRelease(&shared->lock);
}

core::Clocks read_clocks() {
    return {GetCurrentTimestamp(), pg::steady_now()};
}

Size task_size() {
    return sizeof(Shared);
}

void attach_task(void* memory, LWLockPadded*, bool found) {
    shared = static_cast<Shared*>(memory);
    if (found) return;
    SpinLockInit(&shared->lock);
    shared->task = {};
}

}  // namespace idem::worker
