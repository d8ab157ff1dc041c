#include "pg/faults.hpp"

#include "pg/guc.hpp"
#include "pg/rehearsal.hpp"
#include "pg/report.hpp"

namespace idem::pg {
namespace {

constinit bool cut_at_commit = false;

bool is_drawn(double share) {
    return share > 0 && !rehearsing && pg_prng_double(&pg_global_prng_state) < share;
}

// As a network does it: what the server sends from now on is lost, and its next read finds the end
// of the connection. Raises no error, because a transaction that has committed must not meet one.
void cut_connection() {
    (void)shutdown(MyProcPort->sock, SHUT_RDWR);
}

extern "C" {
static void cut_at_end(XactEvent event, void*) {
    if (!cut_at_commit) return;
    if (event == XACT_EVENT_COMMIT) cut_connection();
    if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE)
        cut_at_commit = false;
}
}

}  // namespace

void init_faults() {
    RegisterXactCallback(cut_at_end, nullptr);
}

bool is_duplicated() {
    return is_drawn(guc::test_duplicate_rate);
}

// A background worker has no client.
void maybe_crash() {
    if (MyProcPort == nullptr || !is_drawn(guc::test_crash_rate)) return;
    cut_at_commit = pg_prng_bool(&pg_global_prng_state);
    if (cut_at_commit) return;
    cut_connection();
    report::test_crash();
}

}  // namespace idem::pg
