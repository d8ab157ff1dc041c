// What the launcher and the purge worker share, and the registration of the launcher.
#include "worker/worker.hpp"

namespace idem::worker {

void catch_signals() {
    pqsignal(SIGHUP, SignalHandlerForConfigReload);
    pqsignal(SIGTERM, die);
    BackgroundWorkerUnblockSignals();
}

void sleep(std::int64_t usecs, std::uint32_t wait_event) {
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

BackgroundWorker worker_named(const char* name, const char* function, int restart_time) {
    BackgroundWorker worker{};
    worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
    worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
    worker.bgw_restart_time = restart_time;
    strlcpy(worker.bgw_name, name, BGW_MAXLEN);
    strlcpy(worker.bgw_type, name, BGW_MAXLEN);
    strlcpy(worker.bgw_library_name, "idem", BGW_MAXLEN);
    strlcpy(worker.bgw_function_name, function, BGW_MAXLEN);
    return worker;
}

void register_launcher() {
    constexpr int restart_after_seconds = 5;
    if (!process_shared_preload_libraries_in_progress || IsBinaryUpgrade) return;
    auto worker = worker_named("idem launcher", "idem_launcher_main", restart_after_seconds);
    RegisterBackgroundWorker(&worker);
}

}  // namespace idem::worker
