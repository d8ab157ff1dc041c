#include "pg/visit.hpp"

#include "pg/boundary.hpp"
#include "pg/record.hpp"
#include "pg/table.hpp"

namespace idem::pg {
namespace {

struct Shared {
    slock_t lock;
    Visit visit;  // the newest
};

constinit Shared* shared = nullptr;

struct Need {
    Table table;
    LOCKMODE mode;
};

// Scopes are only read: a transaction that has created one does not keep the worker out. The order
// is that of creation, in which DROP EXTENSION locks the tables.
constexpr std::array needs = {
    Need{Table::scope_id, AccessShareLock}, Need{Table::scope, AccessShareLock},
    Need{Table::record, RowExclusiveLock}, Need{Table::sweep, AccessShareLock},
    Need{Table::dropped_scope, AccessShareLock}};

// A schema and tables of these names may exist without the extension.
bool belongs_to(Oid extension, Oid table) {
    return OidIsValid(table) && getExtensionOfObject(RelationRelationId, table) == extension;
}

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

Installation lock_installation() {
    const Oid extension = get_extension_oid("idem", true);
    if (!OidIsValid(extension)) return Installation::absent;
    for (const auto& [table, mode] : needs) {
        const Oid oid = find_table_oid(table);
        if (!belongs_to(extension, oid)) return Installation::absent;
        if (!ConditionalLockRelationOid(oid, mode)) return Installation::busy;
        // The table may have gone before we had the lock; taking the lock accepted invalidations.
        if (find_table_oid(table) != oid) return Installation::absent;
    }
    return has_record_layout() ? Installation::ready : Installation::absent;
}

}  // namespace idem::pg
