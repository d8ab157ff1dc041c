#include "pg/shared_memory.hpp"

#include "pg/census.hpp"
#include "pg/limiter.hpp"
#include "pg/stats.hpp"
#include "pg/visit.hpp"
#include "pg/wakeup.hpp"

namespace idem::pg {
namespace {

// attach() is given the piece and its locks; found says that the piece has been set up before.
struct Piece {
    const char* name;
    int locks;
    Size (*size)();
    void (*attach)(void* memory, LWLockPadded* locks, bool found);
    Size (*table_size)() = nullptr;  // of a hash table that attach() makes beside the piece
};

constexpr std::array pieces = {
    Piece{"idem_census", 0, census_size, attach_census},
    Piece{"idem_limiter", limiter_locks, limiter_size, attach_limiter, limiter_table_size},
    Piece{"idem_stats", stats_locks, stats_size, attach_stats},
    Piece{"idem_visit", 0, visit_size, attach_visit},
    Piece{"idem_wakeup", 0, wakeup_size, attach_wakeup},
};

constinit shmem_request_hook_type next_request_hook = nullptr;
constinit shmem_startup_hook_type next_startup_hook = nullptr;

extern "C" {

static void request() {
    if (next_request_hook != nullptr) next_request_hook();
    for (const Piece& piece : pieces) {
        RequestAddinShmemSpace(piece.size());
        if (piece.table_size != nullptr) RequestAddinShmemSpace(piece.table_size());
        if (piece.locks > 0) RequestNamedLWLockTranche(piece.name, piece.locks);
    }
}

static void startup() {
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

void init_shared_memory() {
    if (!process_shared_preload_libraries_in_progress) return;
    next_request_hook = shmem_request_hook;
    shmem_request_hook = request;
    next_startup_hook = shmem_startup_hook;
    shmem_startup_hook = startup;
}

}  // namespace idem::pg
