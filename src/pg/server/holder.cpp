#include "pg/server/holder.hpp"

#include "pg/server/compat.hpp"

namespace idem::pg {
namespace {

// When a backend's transaction began. It is read from the status snapshot, which the server keeps
// for the rest of a transaction by default; so the snapshot is dropped first.
std::optional<TimestampTz> transaction_start(int pid) {
    pgstat_clear_backend_activity_snapshot();
    const int backends = pgstat_fetch_stat_numbackends();
    for (int i = 1; i <= backends; ++i) {
        const LocalPgBackendStatus* local = compat::pgstat_get_local_beentry_by_index(i);
        if (local != nullptr && local->backendStatus.st_procpid == pid &&
            local->backendStatus.st_xact_start_timestamp != 0)
            return local->backendStatus.st_xact_start_timestamp;
    }
    return std::nullopt;
}

}  // namespace

Holder holder_of_process(int pid) {
    if (pid == 0) return {};
    return {.pid = pid, .since = transaction_start(pid)};
}

// A running transaction without a process is a prepared one.
Holder holder_of(TransactionId xid) {
    if (!TransactionIdIsValid(xid) || !TransactionIdIsInProgress(xid)) return {};
    const TransactionId topmost = SubTransGetTopmostTransaction(xid);
    Holder holder = holder_of_process(BackendXidGetPid(topmost));
    if (!holder.pid) holder.prepared = topmost;
    return holder;
}

}  // namespace idem::pg
