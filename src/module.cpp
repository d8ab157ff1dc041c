// The module: its magic block, and what each process registers when it loads the library: settings,
// caches, the ends of transactions, shared memory and the launcher. What several parts register
// with the server is here as a list, in the order in which it is called.
#include "pg/open_claims.hpp"
#include "pg/server/guc.hpp"
#include "pg/shared/held_claims.hpp"
#include "pg/shared/rate_limiter.hpp"
#include "pg/shared/stats.hpp"
#include "pg/store/record_tables.hpp"
#include "pg/store/scope.hpp"
#include "pg/store/secret.hpp"
#include "pg/store/table.hpp"
#include "pg/store/version.hpp"
#include "worker/worker.hpp"

extern "C" {
PG_MODULE_MAGIC_EXT(.name = "idem", .version = IDEM_VERSION);
PGDLLEXPORT void _PG_init(void);
}

namespace idem::pg {

const char* const library_version = IDEM_VERSION;

namespace {

// ---- Transactions and savepoints ----------------------------------------------------------------

extern "C" {

static void at_transaction_event(XactEvent event, void*) {
    if (event == XACT_EVENT_PRE_COMMIT || event == XACT_EVENT_PRE_PREPARE)
        prepare_commit(event == XACT_EVENT_PRE_PREPARE);
    if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE) {
        end_waits(event == XACT_EVENT_COMMIT);
        forget_claims();
        forget_choices();
        forget_held_locks();
    }
}

// Of the functions that modules register, the server calls the newest first. prepare_commit() has
// to refuse an open claim before postgres_fdw, for example, commits on another server what belongs
// to it. The new registration comes before the old one is removed, so that an error leaves one.
static void come_first() {
    static constinit bool turn = false;
    static constinit std::array<char, 2> registrations{};
    RegisterXactCallback(at_transaction_event, &registrations[turn ? 0 : 1]);
    UnregisterXactCallback(at_transaction_event, &registrations[turn ? 1 : 0]);
    turn = !turn;
}

static void at_savepoint_event(SubXactEvent event, SubTransactionId sub, SubTransactionId parent,
                               void*) {
    if (event == SUBXACT_EVENT_COMMIT_SUB) {
        hand_over_claims(sub, parent);
        hand_over_choice(sub, parent);
    }
    if (event == SUBXACT_EVENT_ABORT_SUB) {
        undo_claims(sub);
        undo_choice(sub);
        forget_held_locks();
    }
}
}

// ---- Shared memory, which exists only when the library is preloaded -----------------------------

// Each is requested when the postmaster starts and set up once, before any backend runs, and again
// after a crash. attach() is given the piece and its locks; found says that it has been set up.
struct Piece {
    const char* name;
    int locks;
    Size (*size)();
    void (*attach)(void* memory, LWLockPadded* locks, bool found);
    Size (*table_size)() = nullptr;  // of a hash table that attach() makes beside the piece
};

constexpr std::array pieces = {
    Piece{"idem_held_claims", 0, held_claims_size, attach_held_claims},
    Piece{"idem_limiter", limiter_locks, limiter_size, attach_limiter, limiter_table_size},
    Piece{"idem_stats", stats_locks, stats_size, attach_stats},
    Piece{"idem_purge_task", 0, worker::task_size, worker::attach_task},
    Piece{"idem_wakeup", 0, wakeup_size, attach_wakeup},
};

constinit shmem_request_hook_type next_request_hook = nullptr;
constinit shmem_startup_hook_type next_startup_hook = nullptr;

extern "C" {

static void request_memory() {
    if (next_request_hook != nullptr) next_request_hook();
    for (const Piece& piece : pieces) {
        RequestAddinShmemSpace(piece.size());
        if (piece.table_size != nullptr) RequestAddinShmemSpace(piece.table_size());
        if (piece.locks > 0) RequestNamedLWLockTranche(piece.name, piece.locks);
    }
}

static void attach_memory() {
    if (next_startup_hook != nullptr) next_startup_hook();
    LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
    for (const Piece& piece : pieces) {
        bool found;
        void* memory = ShmemInitStruct(piece.name, piece.size(), &found);
        piece.attach(memory, piece.locks > 0 ? GetNamedLWLockTranche(piece.name) : nullptr, found);
    }
    LWLockRelease(AddinShmemInitLock);
}
}

}  // namespace
}  // namespace idem::pg

void _PG_init(void) {
    using namespace idem::pg;
    guc::define();
    init_tables();
    on_invalidation(Table::record, forget_version);
    on_invalidation(Table::scope, forget_scopes);
    on_invalidation(Table::secret, forget_secrets);
    on_firing(keep_scopes);
    init_test_seam();
    come_first();
    on_open_claim(come_first);
    RegisterSubXactCallback(at_savepoint_event, nullptr);
    if (!guc::preloaded) return;
    next_request_hook = std::exchange(shmem_request_hook, request_memory);
    next_startup_hook = std::exchange(shmem_startup_hook, attach_memory);
    idem::worker::register_launcher();
}
