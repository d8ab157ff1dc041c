#include "faults.hpp"

#include "pg/server/subtransaction.hpp"
#include "rehearsal.hpp"

#include <sys/socket.h>

// Where the server supports GSSAPI, this header needs those of Kerberos, which a machine that
// builds extensions may not have. Without GSSAPI, it has the same structures.
extern "C" {
#undef ENABLE_GSS
#include "common/pg_prng.h"
#include "libpq/libpq-be.h"
}

namespace idem::testing {
namespace {

constinit double busy_rate = 0;
constinit double crash_rate = 0;
constinit double duplicate_rate = 0;

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

// ---- Duplicates ---------------------------------------------------------------------------------

constinit ExecutorRun_hook_type next_run = nullptr;

// Runs a copy of the statement, without a client. Rest: before PostgreSQL 18, there is one more
// argument.
template <class... Rest>
void deliver(const QueryDesc* statement, Rest... rest) {
    PushCopiedSnapshot(statement->snapshot);
    QueryDesc* copy =
        CreateQueryDesc(static_cast<PlannedStmt*>(copyObjectImpl(statement->plannedstmt)),
                        statement->sourceText, GetActiveSnapshot(), InvalidSnapshot, None_Receiver,
                        statement->params, statement->queryEnv, 0);
    ExecutorStart(copy, 0);
    ExecutorRun(copy, ForwardScanDirection, 0, rest...);
    ExecutorFinish(copy);
    ExecutorEnd(copy);
    FreeQueryDesc(copy);
    PopActiveSnapshot();
}

// The first of two deliveries. Only a statement that claims keys and ends all these claims can be
// delivered twice: of any other one, and of one that fails, nothing stays, as if it had not come.
template <class... Rest>
void deliver_first(const QueryDesc* statement, Rest... rest) {
    ErrorData* error = pg::in_subtransaction([=] {
        const pg::Claim* before = newest_claim();
        deliver(statement, rest...);
        const ClaimTally claims = claims_since(before);
        if (claims.completed + claims.failed == 0 || claims.open() > 0)
            elog(ERROR, "the statement does not complete a claim");
    });
    if (error == nullptr) return CommandCounterIncrement();
    if (error->sqlerrcode == ERRCODE_QUERY_CANCELED) ReThrowError(error);
    FreeErrorData(error);
}

// A client's statement that runs to its end in one go.
bool may_be_duplicated(const QueryDesc* statement, std::uint64_t count) {
    const CommandDest dest = statement->dest->mydest;
    return (dest == DestRemote || dest == DestRemoteExecute) && count == 0 && !XactReadOnly &&
           !IsInParallelMode();
}

template <class... Rest>
void run_statement(QueryDesc* statement, ScanDirection direction, std::uint64_t count,
                   Rest... rest) {
    if (may_be_duplicated(statement, count) && is_drawn(duplicate_rate))
        deliver_first(statement, rest...);
    (next_run != nullptr ? next_run : standard_ExecutorRun)(statement, direction, count, rest...);
}

// An ordinary role may not send its answers astray.
void define_rate(const char* name, const char* what, const char* how, double* rate) {
    DefineCustomRealVariable(name, what, how, rate, 0, 0, 1, PGC_SUSET, GUC_NOT_IN_SAMPLE, nullptr,
                             nullptr, nullptr);
}

}  // namespace

bool is_busy() {
    return is_drawn(busy_rate);
}

// A background worker has no client.
void maybe_crash() {
    if (MyProcPort == nullptr || !is_drawn(crash_rate)) return;
    cut_at_commit = cut_at_commit || pg_prng_bool(&pg_global_prng_state);
    if (cut_at_commit) return;
    cut_connection();
    // For the log; the client is cut off already.
    ereport(FATAL, (errcode(ERRCODE_ADMIN_SHUTDOWN),
                    errmsg("terminating connection before its transaction commits"),
                    errdetail("The setting \"idem_test.crash_rate\" asks for it."),
                    errhint("In production, reset the setting.")));
}

void init_faults() {
    define_rate("idem_test.busy_rate",
                "Sets the share of claims that are refused as if another delivery of the request "
                "were in progress.",
                "0 disables it.", &busy_rate);
    define_rate("idem_test.crash_rate",
                "Sets the share of claims and completions whose connection is cut.",
                "One half ends before the transaction commits, the other half after it. The client "
                "cannot tell which. 0 disables it.",
                &crash_rate);
    define_rate("idem_test.duplicate_rate",
                "Sets the share of statements that are delivered twice, of those that claim and "
                "complete keys.",
                "The client gets the answer of the second delivery. 0 disables it.",
                &duplicate_rate);
    MarkGUCPrefixReserved("idem_test");
    RegisterXactCallback(cut_at_end, nullptr);
    next_run = ExecutorRun_hook;
    ExecutorRun_hook = run_statement;
}

}  // namespace idem::testing
