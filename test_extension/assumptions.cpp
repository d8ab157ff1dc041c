// What idem rests on that PostgreSQL promises to no extension: one row for each assumption, with
// the file that rests on it, and how it is tried. No SQL script declares these functions;
// t/assumptions.pl does, and shows each assumption alone on the server that runs the test.
#include "pg/server/compat.hpp"
#include "pg/server/subtransaction.hpp"
#include "pg/store/leaf_probe.hpp"
#include "pg/store/table.hpp"

extern "C" {
#include "access/twophase.h"
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
// on block, some thousand rows, and those whose id has one of these values in each byte. The
// session and the prepared transaction have the advisory locks (1, 2) and (1, 3). Half of the rows
// of a table emptied have been deleted, and the pages of its index with them.
constexpr unsigned char stored = 1;
constexpr unsigned char in_progress = 2;  // inserted by a session that is idle in its transaction
constexpr unsigned char prepared = 3;     // inserted by a prepared transaction
constexpr unsigned char updated = 4;      // in place: one entry, several row versions
constexpr unsigned char dead = 5;         // the entry of a row that is gone, marked by a scan
constexpr unsigned char posted = 6;       // so many versions that their entries are one list
constexpr unsigned char absent = 7;

Relation open_canary() {
    return table_open(RelnameGetRelid("canary"), RowExclusiveLock);
}

pg_uuid_t id_of(unsigned char byte) {
    pg_uuid_t id;
    memset(id.data, byte, sizeof id.data);
    return id;
}

// In how many rows of this id the assumption holds, as use(slot) says.
template <class Use>
int at_rows(unsigned char byte, Snapshot snapshot, Use use) {
    const pg_uuid_t id = id_of(byte);
    Relation table = open_canary();
    Relation index = index_open(pg::compat::primary_key_of(table), AccessShareLock);
    TupleTableSlot* slot = table_slot_create(table, nullptr);
    IndexScanDesc scan = pg::compat::begin_index_scan(table, index, snapshot, 1);
    ScanKeyData key;
    ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_UUID_EQ, UUIDPGetDatum(&id));
    index_rescan(scan, &key, 1, nullptr, 0);
    int holds = 0;
    while (index_getnext_slot(scan, ForwardScanDirection, slot))
        if (use(table, index, slot)) ++holds;
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
    const pg_uuid_t id = id_of(stored);
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

// That of pg_advisory_xact_lock(1, number) has class 2.
LOCKTAG advisory(std::uint16_t lock_class, std::uint32_t number = 1) {
    LOCKTAG tag;
    SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, 1, number, lock_class);
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

// Whom a lock conflicts with, if that is one transaction and the lock cannot be had beside it.
VirtualTransactionId holder_of(const LOCKTAG& tag) {
    int count = 0;
    const VirtualTransactionId* holders = GetLockConflicts(&tag, ExclusiveLock, &count);
    const bool refused = LockAcquire(&tag, ExclusiveLock, false, true) == LOCKACQUIRE_NOT_AVAIL;
    return refused && count == 1 ? holders[0] : VirtualTransactionId{};
}

bool locks_of_others() {
    const VirtualTransactionId holder = holder_of(advisory(2, 2));
    const PGPROC* process = pg::compat::process_running(holder);
    bool ambiguous = false;
    return VirtualTransactionIdIsValid(holder) && process != nullptr && process != MyProc &&
           process->pid != 0 &&
           !TransactionIdIsValid(TwoPhaseGetXidByVirtualXID(holder, &ambiguous));
}

// Before a restart, the virtual transaction is that of the session which prepared it; after one, it
// has no backend, and the transaction id instead of a local one.
bool locks_of_prepared_transactions() {
    const VirtualTransactionId holder = holder_of(advisory(2, 3));
    if (!VirtualTransactionIdIsValid(holder) || pg::compat::process_running(holder) != nullptr)
        return false;
    bool ambiguous = false;
    const TransactionId xid = TwoPhaseGetXidByVirtualXID(holder, &ambiguous);
    return TransactionIdIsValid(xid) && TransactionIdIsInProgress(xid) && !ambiguous;
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
    TransactionId inserter = InvalidTransactionId;
    (void)at_rows(row, &dirty, [&](Relation, Relation, TupleTableSlot*) {
        inserter = dirty.xmin;
        return true;
    });
    return inserter;
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
    const auto update_in_place = [](Relation table, Relation, TupleTableSlot* slot) {
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
    };
    return at_rows(stored, SnapshotSelf, update_in_place) == 1;
}

// Stores another row with this id. Whether no row has it, or may come to have it.
bool add(Relation table, Relation index, unsigned char byte) {
    pg_uuid_t id = id_of(byte);
    std::array values{UUIDPGetDatum(&id), Int32GetDatum(0)};
    std::array nulls{false, false};
    TupleTableSlot* slot = table_slot_create(table, nullptr);
    ExecForceStoreHeapTuple(heap_form_tuple(RelationGetDescr(table), values.data(), nulls.data()),
                            slot, false);
    table_tuple_insert(table, slot, GetCurrentCommandId(true), 0, nullptr);
    const bool unique = index_insert(index, values.data(), nulls.data(), &slot->tts_tid, table,
                                     UNIQUE_CHECK_PARTIAL, false, nullptr);
    ExecDropSingleTupleTableSlot(slot);
    return unique;
}

// The test's lock_timeout ends a wait for another row's transaction.
bool partial_uniqueness() {
    bool holds = false;
    bool* at = &holds;
    const auto work = [at] {
        Relation table = open_canary();
        Relation index = index_open(pg::compat::primary_key_of(table), RowExclusiveLock);
        const bool refused = !add(table, index, stored) && !add(table, index, in_progress) &&
                             !add(table, index, prepared);
        const bool added = add(table, index, absent) && add(table, index, dead);
        index_close(index, NoLock);
        table_close(table, NoLock);
        CommandCounterIncrement();
        const auto any = [](Relation, Relation, TupleTableSlot*) { return true; };
        *at = refused && added && at_rows(stored, SnapshotSelf, any) == 2 &&
              at_rows(in_progress, SnapshotSelf, any) == 1;
    };
    undone(work);
    return holds;
}

bool scan_limits() {
    constexpr BlockNumber first = 1;
    std::array<int, 4> rows{};  // of the block before the limits, of those within, and beyond
    Relation table = open_canary();
    pg::scan_blocks(table, SnapshotSelf, first, 2, [&rows](TupleTableSlot* slot) {
        ++rows[std::min<std::size_t>(ItemPointerGetBlockNumber(&slot->tts_tid), rows.size() - 1)];
    });
    const bool beyond = RelationGetNumberOfBlocks(table) > first + 2;
    table_close(table, NoLock);
    return beyond && rows[0] == 0 && rows[1] > 0 && rows[2] > 0 && rows[3] == 0;
}

// What the leaf page says of the id, and whether its first entry leads to the row, which may be a
// later version than the one that has the entry.
struct Probed {
    pg::LeafEntry::Answer answer;
    bool found;
    bool later;
};

Probed probe(Relation table, Relation index, const pg_uuid_t& id) {
    const pg::LeafEntry entry = pg::probe_leaf(table, index, id);
    Probed probed{entry.answer, false, false};
    if (entry.answer != pg::LeafEntry::Answer::first) return probed;
    TupleTableSlot* slot = table_slot_create(table, nullptr);
    if (pg::compat::fetch_by_entry(table, entry.row, SnapshotSelf, slot)) {
        bool null;
        const pg_uuid_t* seen = DatumGetUUIDP(slot_getattr(slot, 1, &null));
        probed.found = memcmp(seen, &id, sizeof id) == 0;
        auto row = entry.row;
        probed.later = !ItemPointerEquals(&row, &slot->tts_tid);
    }
    ReleaseBuffer(entry.leaf);
    ExecDropSingleTupleTableSlot(slot);
    return probed;
}

Probed probe(unsigned char byte) {
    Relation table = open_canary();
    Relation index = index_open(pg::compat::primary_key_of(table), AccessShareLock);
    const Probed probed = probe(table, index, id_of(byte));
    index_close(index, NoLock);
    table_close(table, NoLock);
    return probed;
}

// Of each row, and of an id beside each. A scan is needed where pages are divided, and by the rows
// with versions of their own.
bool leaf_pages() {
    using Answer = pg::LeafEntry::Answer;
    Relation table = open_canary();
    Relation index = index_open(pg::compat::primary_key_of(table), AccessShareLock);
    struct {
        int rows, found, missing, wrong;
    } count{};
    pg::scan_rows(table, SnapshotSelf, [&, table, index](TupleTableSlot* slot) {
        bool null;
        pg_uuid_t id = *DatumGetUUIDP(slot_getattr(slot, 1, &null));
        const Probed there = probe(table, index, id);
        id.data[UUID_LEN - 1] ^= 1;
        const Probed beside = probe(table, index, id);
        ++count.rows;
        if (there.found) ++count.found;
        if (beside.answer == Answer::none) ++count.missing;
        if (there.answer == Answer::none || beside.answer == Answer::first) ++count.wrong;
    });
    index_close(index, NoLock);
    table_close(table, NoLock);
    return count.rows > 1000 && count.wrong == 0 && count.found > count.rows * 9 / 10 &&
           count.missing > count.rows * 9 / 10;
}

bool entries_of_versions() {
    const Probed probed = probe(updated);
    return probed.found && probed.later;
}

bool dead_entries() {
    return probe(dead).answer == pg::LeafEntry::Answer::unclear;
}

bool posting_lists() {
    const auto any = [](Relation, Relation, TupleTableSlot*) { return true; };
    return probe(posted).answer == pg::LeafEntry::Answer::unclear &&
           at_rows(posted, SnapshotSelf, any) == 1;
}

// The test has had a snapshot since before it deleted these pages.
bool deleted_pages() {
    Relation table = table_open(RelnameGetRelid("emptied"), AccessShareLock);
    Relation index = index_open(pg::compat::primary_key_of(table), AccessShareLock);
    int deleted = 0;
    int kept = 0;
    for (BlockNumber block = 1; block < RelationGetNumberOfBlocks(index); ++block) {
        const Buffer buffer = ReadBuffer(index, block);
        LockBuffer(buffer, BUFFER_LOCK_SHARE);
        Page page = BufferGetPage(buffer);
        if (P_IGNORE(BTPageGetOpaque(page))) {
            ++deleted;
            if (!GlobalVisCheckRemovableFullXid(table, BTPageGetDeleteXid(page))) ++kept;
        }
        UnlockReleaseBuffer(buffer);
    }
    index_close(index, NoLock);
    table_close(table, NoLock);
    return deleted > 0 && kept == deleted;
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
    Assumption{"locks of others", "pg/store/key_lock.cpp",
               "GetLockConflicts() finds the process that has an advisory lock", locks_of_others},
    Assumption{"locks of prepared transactions", "pg/store/key_lock.cpp",
               "a prepared transaction keeps its locks, and is found by their virtual transaction",
               locks_of_prepared_transactions},
    Assumption{"partial uniqueness", "pg/store/table.cpp",
               "UNIQUE_CHECK_PARTIAL adds the entry, does not wait, and says what is not unique",
               partial_uniqueness},
    Assumption{"scan limits", "pg/store/table.hpp",
               "heap_setscanlimits() limits a scan to these blocks", scan_limits},
    Assumption{"leaf pages", "pg/store/leaf_probe.cpp",
               "one leaf page of a btree says whether a uuid has an entry", leaf_pages},
    Assumption{"row versions", "pg/store/leaf_probe.cpp",
               "the entry of a row that was updated in place leads to its last version",
               entries_of_versions},
    Assumption{"dead entries", "pg/store/leaf_probe.cpp",
               "the line pointer of an entry that scans pass over is dead", dead_entries},
    Assumption{"posting lists", "pg/store/leaf_probe.cpp",
               "an entry says whether it is a list of rows", posting_lists},
    Assumption{"deleted pages", "pg/store/leaf_probe.cpp",
               "a deleted page says so, and is not reused while a snapshot is older",
               deleted_pages},
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
