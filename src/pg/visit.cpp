#include "pg/visit.hpp"

#include "pg/boundary.hpp"

namespace idem::pg {
namespace {

struct Shared {
    slock_t lock;
    Visit visit;  // the newest
};

constinit Shared* shared = nullptr;

}  // namespace

Visit open_visit(Oid database, const core::Clocks& clocks) {
    Assert(shared != nullptr && OidIsValid(database));
    SpinLockAcquire(&shared->lock);
    shared->visit = {shared->visit.number + 1, database, clocks, VisitOutcome::open, {}};
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
    Assert(shared != nullptr && visit.counts.seen >= visit.counts.deleted);
    SpinLockAcquire(&shared->lock);
    if (shared->visit.number == visit.number) shared->visit = visit;
    SpinLockRelease(&shared->lock);
}

core::Clocks read_clocks() {
    return {GetCurrentTimestamp(), steady_now()};
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
