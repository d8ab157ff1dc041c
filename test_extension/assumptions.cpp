// What idem rests on that PostgreSQL promises to no extension: one row for each assumption, with
// the file that rests on it, and how it is tried. No SQL script declares these functions;
// t/assumptions.pl does, and shows each assumption alone on the server that runs the test.
#include "pg/server/compat.hpp"
#include "pg/server/subtransaction.hpp"

extern "C" {
#include "tcop/pquery.h"
}

namespace idem::testing {
namespace {

using pg::Ending;
using pg::in_subtransaction;

// ---- Where it is tried
// ---------------------------------------------------------------------------
//
// t/assumptions.pl makes the table canary (id uuid PRIMARY KEY, block integer), with a BRIN index
// on block, and these rows.
constexpr unsigned char stored = 1;
constexpr unsigned char in_progress = 2;  // inserted by a session that is idle in its transaction
constexpr unsigned char prepared = 3;     // inserted by a prepared transaction

Relation open_canary() {
    return table_open(RelnameGetRelid("canary"), RowExclusiveLock);
}

// The row whose id has this value in each byte; use(slot) returns what the assumption says.
template <class Use>
bool at_row(unsigned char byte, Snapshot snapshot, Use use) {
    pg_uuid_t id;
    memset(id.data, byte, sizeof id.data);
    Relation table = open_canary();
    Relation index = index_open(pg::compat::primary_key_of(table), AccessShareLock);
    TupleTableSlot* slot = table_slot_create(table, nullptr);
    IndexScanDesc scan = pg::compat::begin_index_scan(table, index, snapshot, 1);
    ScanKeyData key;
    ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_UUID_EQ, UUIDPGetDatum(&id));
    index_rescan(scan, &key, 1, nullptr, 0);
    const bool holds =
        index_getnext_slot(scan, ForwardScanDirection, slot) && use(table, index, slot);
    index_endscan(scan);
    ExecDropSingleTupleTableSlot(slot);
    index_close(index, NoLock);
    table_close(table, NoLock);
    return holds;
}

// Runs the work and undoes it. Raises its error: the test shows it.
template <class Work>
void undone(Work work) {
    ErrorData* error = in_subtransaction(work, Ending::undo);
    if (error != nullptr) ReThrowError(error);
}

// ---- How each is tried
// ---------------------------------------------------------------------------

bool change_counts() {
    struct {
        int st_changecount;
    } slot{};
    int during;
    int before;
    int after;
    PGSTAT_BEGIN_WRITE_ACTIVITY(&slot);
    pgstat_begin_read_activity(&slot, during);
    PGSTAT_END_WRITE_ACTIVITY(&slot);
    pgstat_begin_read_activity(&slot, before);
    pgstat_end_read_activity(&slot, after);
    return !pgstat_read_activity_complete(during, during) &&
           !pgstat_read_activity_complete(during, after) &&
           pgstat_read_activity_complete(before, after);
}

bool portal_of_the_client() {
    if (ActivePortal == nullptr || list_length(ActivePortal->stmts) != 1) return false;
    const Node* utility = linitial_node(PlannedStmt, ActivePortal->stmts)->utilityStmt;
    return utility == nullptr || IsA(utility, ExplainStmt);
}

bool catalog_scan_of_any_table() {
    pg_uuid_t id;
    memset(id.data, stored, sizeof id.data);
    Relation table = open_canary();
    ScanKeyData key;
    ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_UUID_EQ, UUIDPGetDatum(&id));
    SysScanDesc scan =
        systable_beginscan(table, pg::compat::primary_key_of(table), true, SnapshotSelf, 1, &key);
    const bool found = HeapTupleIsValid(systable_getnext(scan));
    const bool again = HeapTupleIsValid(systable_getnext(scan));
    systable_endscan(scan);
    table_close(table, NoLock);
    return found && !again;
}

LOCKTAG advisory(std::uint16_t lock_class) {
    LOCKTAG tag;
    SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, 1, 2, lock_class);
    return tag;
}

bool advisory_classes() {
    const LOCKTAG ours = advisory(60000);
    (void)LockAcquire(&ours, ExclusiveLock, false, true);
    const bool apart = pg::compat::holds_lock(ours, ExclusiveLock) &&
                       !pg::compat::holds_lock(advisory(1), ExclusiveLock);
    return LockRelease(&ours, ExclusiveLock, false) && apart;
}

bool locks_of_subtransactions() {
    const LOCKTAG tag = advisory(60000);
    bool held = false;
    bool* at = &held;
    const auto lock = [&tag = tag, at] {
        ResourceOwner before = std::exchange(CurrentResourceOwner, CurTransactionResourceOwner);
        (void)LockAcquire(&tag, ExclusiveLock, false, true);
        CurrentResourceOwner = before;
        *at = pg::compat::holds_lock(tag, ExclusiveLock);
    };
    undone(lock);
    return held && !pg::compat::holds_lock(tag, ExclusiveLock);
}

bool settings_of_subtransactions() {
    const int before = LockTimeout;
    bool set = false;
    bool* at = &set;
    const auto work = [at] {
        (void)set_config_option("lock_timeout", "1234", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE,
                                true, 0, false);
        *at = LockTimeout == 1234;
    };
    undone(work);
    return set && LockTimeout == before;
}

bool latches_by_number() {
    const auto number = MyProc - ProcGlobal->allProcs;
    return number >= 0 && number < MaxBackends &&
           &ProcGlobal->allProcs[number].procLatch == MyLatch;
}

bool virtual_transactions() {
    VirtualTransactionId own;
    GET_VXID_FROM_PGPROC(own, *MyProc);
    if (!VirtualTransactionIdIsValid(own) || pg::compat::process_running(own) != MyProc)
        return false;
    ++own.localTransactionId;
    return pg::compat::process_running(own) == nullptr;
}

// Whose transaction inserts the row, as a dirty snapshot says it.
TransactionId inserter_of(unsigned char row) {
    SnapshotData dirty;
    InitDirtySnapshot(dirty);
    return at_row(row, &dirty, [](Relation, Relation, TupleTableSlot*) { return true; })
               ? dirty.xmin
               : InvalidTransactionId;
}

bool dirty_snapshots() {
    const TransactionId xid = inserter_of(in_progress);
    return TransactionIdIsValid(xid) && TransactionIdIsInProgress(xid) &&
           BackendXidGetPid(xid) != 0 && !TransactionIdIsValid(inserter_of(stored));
}

bool prepared_transactions() {
    const TransactionId xid = inserter_of(prepared);
    return TransactionIdIsValid(xid) && TransactionIdIsInProgress(xid) &&
           BackendXidGetPid(xid) == 0;
}

bool updates_of_summarized_columns() {
    return at_row(stored, SnapshotSelf, [](Relation table, Relation, TupleTableSlot* slot) {
        ItemPointerData tid = slot->tts_tid;
        TupleTableSlot* row = table_slot_create(table, nullptr);
        ExecCopySlot(row, slot);
        slot_getallattrs(row);
        row->tts_values[1] = Int32GetDatum(DatumGetInt32(row->tts_values[1]) + 1);
        HeapTuple changed =
            heap_form_tuple(RelationGetDescr(table), row->tts_values, row->tts_isnull);
        ExecForceStoreHeapTuple(changed, row, false);
        auto entries = pg::compat::IndexEntries::none;
        auto* at = &entries;
        const auto update = [=] {
            auto where = tid;
            if (pg::compat::update_tuple(table, &where, row, *at) != TM_Ok)
                elog(ERROR, "the row cannot be updated");
        };
        undone(update);
        ExecDropSingleTupleTableSlot(row);
        constexpr auto expected = PG_VERSION_NUM >= 160000 ? pg::compat::IndexEntries::summarizing
                                                           : pg::compat::IndexEntries::all;
        return entries == expected;
    });
}

constinit Oid invalidated = InvalidOid;

bool invalidations() {
    static constinit bool registered = false;
    if (!std::exchange(registered, true))
        CacheRegisterRelcacheCallback([](Datum, Oid relation) { invalidated = relation; }, 0);
    Relation table = open_canary();
    invalidated = InvalidOid;
    (void)GetCurrentCommandId(true);
    CacheInvalidateRelcache(table);
    CommandCounterIncrement();
    table_close(table, NoLock);
    return OidIsValid(RelnameGetRelid("canary")) && invalidated == RelnameGetRelid("canary");
}

// The test sets statement_timeout to an hour.
bool statement_timers() {
    return get_timeout_active(STATEMENT_TIMEOUT) &&
           get_timeout_finish_time(STATEMENT_TIMEOUT) > GetCurrentTimestamp() &&
           get_timeout_finish_time(STATEMENT_TIMEOUT) <=
               GetCurrentTimestamp() + std::int64_t{3600} * USECS_PER_SEC;
}

// ---- The assumptions
// -----------------------------------------------------------------------------

struct Assumption {
    const char* name;
    const char* file;  // that rests on it, in src
    const char* what;
    bool (*holds)();
};

constexpr std::array assumptions = {
    Assumption{"change counts", "pg/shared/held_claims.cpp",
               "a status entry that is being written is told from one that is whole",
               change_counts},
    Assumption{"portal", "api/arguments.cpp", "ActivePortal has the statement of the client",
               portal_of_the_client},
    Assumption{"catalog scans", "pg/store/table.cpp",
               "systable_beginscan() scans any table, by any index and snapshot",
               catalog_scan_of_any_table},
    Assumption{"advisory classes", "pg/store/key_lock.cpp",
               "advisory locks of different classes are different locks", advisory_classes},
    Assumption{"lock owners", "pg/store/key_lock.cpp",
               "ROLLBACK TO releases a lock that CurTransactionResourceOwner owns",
               locks_of_subtransactions},
    Assumption{"settings", "pg/server/wait.cpp",
               "GUC_ACTION_SAVE lasts until the end of the subtransaction",
               settings_of_subtransactions},
    Assumption{"latches", "pg/server/wakeup.cpp",
               "a backend's latch is in allProcs, below MaxBackends", latches_by_number},
    Assumption{"virtual transactions", "pg/server/compat.hpp",
               "a process is found by the virtual transaction that it runs", virtual_transactions},
    Assumption{"dirty snapshots", "pg/store/table.cpp",
               "a dirty snapshot says which transaction inserts a row", dirty_snapshots},
    Assumption{"prepared transactions", "pg/shared/held_claims.cpp",
               "a transaction in progress without a process is a prepared one",
               prepared_transactions},
    Assumption{"summarizing indexes", "pg/server/compat.hpp",
               "an update says which indexes need an entry", updates_of_summarized_columns},
    Assumption{"invalidations", "pg/store/table.cpp",
               "CacheInvalidateRelcache() reaches this backend with the next command",
               invalidations},
    Assumption{"statement timers", "pg/server/wait.cpp",
               "the timer of statement_timeout says when it is due", statement_timers},
};

}  // namespace
}  // namespace idem::testing

IDEM_FUNCTION(idem_test_assumptions) {
    using namespace idem;
    InitMaterializedSRF(fcinfo, 0);
    auto* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
    for (const testing::Assumption& assumption : testing::assumptions) {
        Datum values[] = {CStringGetTextDatum(assumption.name),
                          CStringGetTextDatum(assumption.file),
                          CStringGetTextDatum(assumption.what)};
        bool nulls[3] = {};
        tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
    }
    return Datum{0};
}

IDEM_FUNCTION(idem_test_assumption) {
    using namespace idem;
    const std::string_view name = text_to_cstring(PG_GETARG_TEXT_PP(0));
    for (const testing::Assumption& assumption : testing::assumptions)
        if (name == assumption.name) PG_RETURN_BOOL(assumption.holds());
    elog(ERROR, "no such assumption");
}
