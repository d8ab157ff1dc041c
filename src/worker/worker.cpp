#include "worker/worker.hpp"

#include "pg/server/wait.hpp"

extern "C" {
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
}

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

void pause(std::int64_t usecs, std::uint32_t wait_event) {
    pg::wait_on_latch(usecs, wait_event);
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
    shared->task = {shared->task.number + 1, database, clocks, Outcome::unreported, {}};
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
