#include "pg/visit.hpp"

namespace idem::pg {
namespace {

struct Shared {
    slock_t lock;
    Visit visit;  // the newest
};

constinit Shared* shared = nullptr;

}  // namespace

Visit open_visit(Oid database, const core::Clocks& clocks) {
    SpinLockAcquire(&shared->lock);
    shared->visit = {shared->visit.number + 1, database, clocks, Ending::open, {}};
    const Visit visit = shared->visit;
    SpinLockRelease(&shared->lock);
    return visit;
}

Visit find_visit(std::int32_t number) {
    SpinLockAcquire(&shared->lock);
    Visit visit = shared->visit;
    SpinLockRelease(&shared->lock);
    if (visit.number != number) visit.database = InvalidOid;
    return visit;
}

void report_visit(const Visit& visit) {
    SpinLockAcquire(&shared->lock);
    if (shared->visit.number == visit.number) shared->visit = visit;
    SpinLockRelease(&shared->lock);
}

core::Clocks read_clocks() {
    instr_time steady;
    INSTR_TIME_SET_CURRENT(steady);
    return {GetCurrentTimestamp(), static_cast<std::int64_t>(INSTR_TIME_GET_MICROSEC(steady))};
}

Size visit_size() {
    return sizeof(Shared);
}

void attach_visit(void* memory, LWLockPadded*, bool found) {
    shared = static_cast<Shared*>(memory);
    if (found) return;
    SpinLockInit(&shared->lock);
    shared->visit = {};
}

}  // namespace idem::pg
