#include "pg/sweep.hpp"

#include "pg/compat.hpp"
#include "pg/hash_table.hpp"
#include "pg/lock.hpp"
#include "pg/owner.hpp"
#include "pg/record.hpp"
#include "pg/report.hpp"
#include "pg/scope.hpp"
#include "pg/scope_ids.hpp"
#include "pg/stats.hpp"
#include "pg/subtransaction.hpp"
#include "pg/table.hpp"

namespace idem::pg {
namespace {

// The number of blocks per scan: each scan fills its ring of buffers anew.
constexpr BlockNumber stretch = 1024;

bool is_in_subscription(Oid relation) {
    ScanKeyData key;
    ScanKeyInit(&key, Anum_pg_subscription_rel_srrelid, BTEqualStrategyNumber, F_OIDEQ,
                ObjectIdGetDatum(relation));
    Relation subscribed = table_open(SubscriptionRelRelationId, AccessShareLock);
    SysScanDesc scan = systable_beginscan(subscribed, SubscriptionRelSrrelidSrsubidIndexId, true,
                                          nullptr, 1, &key);
    const bool found = HeapTupleIsValid(systable_getnext(scan));
    systable_endscan(scan);
    table_close(subscribed, AccessShareLock);
    return found;
}

// Whether a subscription of this database, enabled or not, writes the table, by its name or that of
// a partitioned table. Its rows then belong to the publisher, which may still change what has
// expired here, because the subscription may lag.
bool is_subscribed(Relation relation) {
    const Oid table = RelationGetRelid(relation);
    List* parents = relation->rd_rel->relispartition ? get_partition_ancestors(table) : NIL;
    bool subscribed = is_in_subscription(table);
    for (int i = 0; i < list_length(parents); ++i)
        subscribed = subscribed || is_in_subscription(list_nth_oid(parents, i));
    list_free(parents);
    return subscribed;
}

struct KnownScope {
    std::int32_t id;  // the hash key
    bool dropped;
    std::optional<std::int64_t> answer_ttl;
};

// Blocks in which the sweep has passed over rows.
struct Fault {
    RecordBlock block;    // the first of them
    int sqlstate;         // the first error
    ItemPointerData tid;  // of the row that notes it; not valid: it has just been found
    bool cured;           // this step has read the block without an error
};
constexpr int max_faults = 100;

struct Sweep {
    TimestampTz now;
    int patience;
    std::int64_t left;     // records that may still be changed
    std::int64_t blocks;   // that may still be read
    RecordBlock hand;      // where the next step begins
    Relation records;      // the table that is being read
    bool changed;          // something in it
    bool rewrites;         // its answers may be removed
    List* faults;          // Fault
    MemoryContext memory;  // for one row
    SweepResult result;
    HashTable<std::int32_t, KnownScope> scopes;  // those that exist, and those that were dropped

    bool timed_out;  // a table: what follows is for the next step

    bool is_full() const { return left == 0 || blocks == 0 || timed_out; }
};

void purge(Sweep& sweep, TupleTableSlot* slot) {
    Assert(sweep.left > 0);
    sweep.changed = true;
    if (compat::delete_row(sweep.records, &slot->tts_tid, compat::Waiting::no) != TM_Ok)
        return;  // another transaction is changing the row; the next round comes back to it
    count(record_scope(slot), Counter::purged);
    ++sweep.result.deleted;
    --sweep.left;
}

// Reads all scopes at once: looking up each by itself takes too long where there are thousands. A
// scope that exists was not dropped, whatever is noted.
void learn_scopes(Sweep& sweep) {
    auto& scopes = sweep.scopes;
    scopes.create("idem scopes of a sweep", 16, CurrentMemoryContext);
    scan_committed(Table::scope, [&scopes](TupleTableSlot* slot) {
        bool known;
        KnownScope* scope =
            scopes.enter(DatumGetInt32(*scope_row::column(slot, scope_row::column_id)), known);
        scope->dropped = false;
        scope->answer_ttl = scope_row::answer_ttl(slot);
    });
    const List* dropped = dropped_scopes();
    for (int i = 0; i < list_length(dropped); ++i) {
        bool known;
        KnownScope* scope = scopes.enter(list_nth_int(dropped, i), known);
        if (!known) *scope = {scope->id, true, std::nullopt};
    }
}

const KnownScope& scope_of(Sweep& sweep, TupleTableSlot* slot) {
    const std::int32_t id = record_scope(slot);
    bool known;
    KnownScope* scope = sweep.scopes.enter(id, known);
    if (!known) *scope = {id, false, std::nullopt};
    return *scope;
}

void erase(Sweep& sweep, TupleTableSlot* slot) {
    Assert(sweep.left > 0);
    sweep.changed = true;
    const MemoryContext before = MemoryContextSwitchTo(sweep.memory);
    const bool erased = sweep.rewrites && try_erase(sweep.records, slot);
    MemoryContextSwitchTo(before);
    if (!erased) return;  // as for purge()
    ++sweep.result.erased;
    --sweep.left;
}

bool should_erase(Sweep& sweep, TupleTableSlot* slot, std::int64_t answer_ttl) {
    MemoryContextReset(sweep.memory);
    const MemoryContext before = MemoryContextSwitchTo(sweep.memory);
    const bool outlived = has_outlived_answer(slot, answer_ttl, sweep.now);
    MemoryContextSwitchTo(before);
    return outlived;
}

// A record of our own transaction does not expire within it, and keeps its answer.
void visit(Sweep& sweep, TupleTableSlot* slot) {
    if (record_expires(slot) <= sweep.now) {
        if (!written_here(slot)) purge(sweep, slot);
        return;
    }
    const KnownScope& scope = scope_of(sweep, slot);
    if (!scope.dropped && !scope.answer_ttl) return;
    if (written_here(slot)) return;
    if (scope.dropped) return purge(sweep, slot);
    if (scope.answer_ttl && should_erase(sweep, slot, *scope.answer_ttl)) erase(sweep, slot);
}

// ---- What fails ---------------------------------------------------------------------------------

constexpr int longest_wait = 1000;  // for a lock, in milliseconds

// What the sweep has counted, to be restored when the work is undone.
struct Counts {
    std::int64_t left;
    bool changed;
    SweepResult result;
};

// Runs work() in a subtransaction. Returns its error, after which it counts as not done.
template <class Work>
ErrorData* attempt(Sweep& sweep, Work work) {
    const Counts before{sweep.left, sweep.changed, sweep.result};
    ErrorData* error = in_subtransaction(work);
    if (error == nullptr) return nullptr;
    sweep.left = before.left;
    sweep.changed = before.changed;
    sweep.result = before.result;
    return error;
}

bool is_cancelled(const ErrorData* error) {
    return error->sqlerrcode == ERRCODE_QUERY_CANCELED;
}

// A statement that is cancelled ends, unless it was the time limit of the table.
template <class Work>
ErrorData* attempt_on_table(Sweep& sweep, Work work) {
    if (sweep.patience > 0) enable_timeout_after(STATEMENT_TIMEOUT, sweep.patience);
    ErrorData* error = attempt(sweep, [&] {
        AsOwner owner(sweep.records);
        set_lock_timeout(longest_wait);
        work();
        owner.end();
    });
    if (sweep.patience > 0) {
        disable_timeout(STATEMENT_TIMEOUT, false);
        QueryCancelPending = false;
    } else if (error != nullptr && is_cancelled(error)) {
        ReThrowError(error);
    }
    return error;
}

bool is_within(const Fault& fault, RecordBlock from, RecordBlock until) {
    return fault.block >= from && fault.block < until;
}

// The worker logs what it has not noted before; a caller of purge() is told each time.
void pass_over(Sweep& sweep, RecordBlock from, RecordBlock until, const ErrorData* error) {
    bool known = false;
    for (int i = 0; i < list_length(sweep.faults); ++i) {
        auto* fault = static_cast<Fault*>(list_nth(sweep.faults, i));
        if (!is_within(*fault, from, until) || fault->sqlstate != error->sqlerrcode) continue;
        known = true;
        fault->cured = false;
    }
    if (!known && list_length(sweep.faults) < max_faults) {
        auto* fault = static_cast<Fault*>(palloc0(sizeof(Fault)));
        fault->block = from;
        fault->sqlstate = error->sqlerrcode;
        ItemPointerSetInvalid(&fault->tid);
        sweep.faults = lappend(sweep.faults, fault);
    }
    if (!known || sweep.patience == 0)
        report::rows_passed_over(qualified_name(RelationGetRelid(sweep.records)), number_of(from),
                                 error);
}

void cure(Sweep& sweep, RecordBlock from, RecordBlock until) {
    for (int i = 0; i < list_length(sweep.faults); ++i) {
        auto* fault = static_cast<Fault*>(list_nth(sweep.faults, i));
        if (is_within(*fault, from, until)) fault->cured = true;
    }
}

// ---- A stretch ----------------------------------------------------------------------------------

// Returns the block at which to go on: the one after the stretch, or the one where the limit was
// reached.
template <class Visit>
BlockNumber read_stretch(Sweep& sweep, BlockNumber first, BlockNumber size, Visit visit) {
    BlockNumber next = first + size;
    scan_blocks(sweep.records, first, size, [&](TupleTableSlot* slot) {
        if (sweep.left == 0) {
            next = ItemPointerGetBlockNumber(&slot->tts_tid);
            return false;
        }
        ++sweep.result.seen;
        visit(slot);
        return true;
    });
    Assert(next >= first && next <= first + size);
    return next;
}

// Reads the stretch row by row. Returns the first error of a row, or the error that ended it.
ErrorData* read_carefully(Sweep& sweep, BlockNumber first, BlockNumber size, BlockNumber& next) {
    ErrorData* first_error = nullptr;
    ErrorData* fatal = attempt_on_table(sweep, [&] {
        next = read_stretch(sweep, first, size, [&](TupleTableSlot* slot) {
            ErrorData* error = attempt(sweep, [&] { visit(sweep, slot); });
            if (error != nullptr && is_cancelled(error)) ReThrowError(error);
            if (first_error == nullptr)
                first_error = error;
            else if (error != nullptr)
                FreeErrorData(error);
        });
    });
    if (fatal != nullptr) next = first + size;
    return fatal == nullptr ? first_error : fatal;
}

BlockNumber sweep_stretch(Sweep& sweep, BlockNumber first, BlockNumber size) {
    const Oid table = RelationGetRelid(sweep.records);
    BlockNumber next = first + size;
    ErrorData* error = attempt_on_table(sweep, [&] {
        next = read_stretch(sweep, first, size, [&](TupleTableSlot* slot) { visit(sweep, slot); });
    });
    sweep.timed_out = error != nullptr && is_cancelled(error);
    if (error != nullptr && !sweep.timed_out) error = read_carefully(sweep, first, size, next);
    const RecordBlock from = record_block(table, first);
    const RecordBlock until = record_block(table, next);
    cure(sweep, from, until);
    if (error != nullptr) pass_over(sweep, from, until, error);
    return next;
}

// Reads the table from one block to another. False if a limit was reached before that.
bool sweep_blocks(Sweep& sweep, BlockNumber from, BlockNumber until) {
    const Oid table = RelationGetRelid(sweep.records);
    for (BlockNumber block = from; block < until;) {
        if (sweep.is_full()) return false;
        const auto size = static_cast<BlockNumber>(
            std::min<std::int64_t>({stretch, until - block, sweep.blocks}));
        const BlockNumber next = sweep_stretch(sweep, block, size);
        sweep.result.blocks += next - block;
        sweep.blocks -= next - block;
        block = next;
        sweep.hand = record_block(table, block);
    }
    return true;
}

// ---- All tables ---------------------------------------------------------------------------------

struct Part {
    Oid table;
    BlockNumber blocks;
    bool subscribed;
};

// The record tables with their sizes, as the step finds them; palloc'd. One that is locked against
// the purge, or not a record table, has the size 0.
struct Parts {
    List* tables;
    Part* parts;

    int size() const { return list_length(tables); }
};

Part measure(Oid table) {
    Part part{table, 0, false};
    Relation relation = open_records_at_once(table, RowExclusiveLock);
    if (relation == nullptr) return part;
    part.subscribed = is_subscribed(relation);
    part.blocks = RelationGetNumberOfBlocks(relation);
    table_close(relation, RowExclusiveLock);
    return part;
}

Parts measure_all() {
    Parts all{record_tables(), nullptr};
    all.parts = static_cast<Part*>(palloc(sizeof(Part) * static_cast<std::size_t>(all.size())));
    for (int i = 0; i < all.size(); ++i) {
        const Oid table = list_nth_oid(all.tables, i);
        Part& part = all.parts[i];
        part = {table, 0, false};
        ErrorData* error = in_subtransaction([&] { part = measure(table); });
        if (error != nullptr) report::table_passed_over(table, error);
    }
    return all;
}

constexpr RecordBlock every_block = ~RecordBlock{0};

// How many blocks of the tables that are not left out come before this one.
std::int64_t blocks_before(const Parts& all, RecordBlock block) {
    std::int64_t before = 0;
    for (int i = 0; i < all.size(); ++i) {
        const Part& part = all.parts[i];
        if (part.subscribed || block <= record_block(part.table, 0)) continue;
        const RecordBlock end = record_block(part.table, part.blocks);
        before += block < end ? number_of(block) : part.blocks;
    }
    return before;
}

// The first table from the one of the block on; the number of tables if there is none.
int first_from(const Parts& all, RecordBlock block) {
    int i = 0;
    while (i < all.size() && record_block(all.parts[i].table, MaxBlockNumber) < block) ++i;
    return i;
}

// Reads the part's blocks from one to another. The lock on a table that was changed is kept until
// the transaction ends. False if a limit was reached.
bool sweep_part(Sweep& sweep, const Part& part, BlockNumber from, BlockNumber until) {
    if (part.subscribed) return true;
    sweep.records = open_records_at_once(part.table, RowExclusiveLock);
    if (sweep.records == nullptr) return true;
    if (is_subscribed(sweep.records)) {  // since it was measured
        table_close(sweep.records, RowExclusiveLock);
        return true;
    }
    sweep.changed = false;
    sweep.rewrites = !OidIsValid(keeps_from_rewriting(sweep.records));
    const BlockNumber blocks = RelationGetNumberOfBlocks(sweep.records);
    const bool complete = sweep_blocks(sweep, from, std::min(until, blocks));
    if (complete && until > blocks)  // what VACUUM has cut off is in order
        cure(sweep, record_block(part.table, blocks), record_block(part.table, MaxBlockNumber));
    table_close(sweep.records, sweep.changed ? NoLock : RowExclusiveLock);
    return complete;
}

// Of the table with this number, or of the first one after the last.
RecordBlock first_block(const Parts& all, int table) {
    return table == all.size() ? 0 : record_block(all.parts[table].table, 0);
}

// From the hand through all tables and, at last, up to the hand again: each block at most once. If
// the table of the hand is gone, the step begins at the next one.
void sweep_all(Sweep& sweep, const Parts& all) {
    const int tables = all.size();
    const int found = first_from(all, sweep.hand);
    if (found == tables || first_block(all, found) > sweep.hand)
        sweep.hand = first_block(all, found);
    const RecordBlock start = sweep.hand;
    for (int i = 0; i <= tables && !sweep.is_full(); ++i) {
        const int table = (found + i) % tables;
        const bool last = i == tables;
        const BlockNumber from = i == 0 ? number_of(start) : 0;
        const BlockNumber until = last ? number_of(start) : MaxBlockNumber;
        if (last && until == 0) return;
        if (!sweep_part(sweep, all.parts[table], from, until)) return;
        sweep.hand = last ? start : first_block(all, table + 1);
    }
}

// ---- The hand -----------------------------------------------------------------------------------

// The row of the hand. Its table is unlogged: after a crash or the promotion of a standby there is
// no row, and the sweep begins anew. The value is a RecordBlock as a signed number.
struct Hand {
    Relation table;
    RecordBlock block;
    ItemPointerData tid;
    List* faults;  // Fault
    bool moves;    // false: another step moves it
};

Fault* fault_in(TupleTableSlot* slot, RecordBlock block, const char* sqlstate) {
    auto* fault = static_cast<Fault*>(palloc0(sizeof(Fault)));
    fault->block = block;
    if (strlen(sqlstate) == 5)
        fault->sqlstate =
            MAKE_SQLSTATE(sqlstate[0], sqlstate[1], sqlstate[2], sqlstate[3], sqlstate[4]);
    fault->tid = slot->tts_tid;
    return fault;
}

Hand read_hand(LOCKMODE mode) {
    Hand hand{open_table(Table::sweep, mode), 0, {}, NIL, false};
    visit_rows(hand.table, compat::begin_table_scan(hand.table, SnapshotSelf),
               [&hand](TupleTableSlot* slot) {
                   bool null;
                   const auto block =
                       static_cast<RecordBlock>(DatumGetInt64(slot_getattr(slot, 1, &null)));
                   const Datum sqlstate = slot_getattr(slot, 2, &null);
                   if (!null) {
                       const char* code = TextDatumGetCString(sqlstate);
                       hand.faults = lappend(hand.faults, fault_in(slot, block, code));
                       return;
                   }
                   hand.block = block;
                   hand.tid = slot->tts_tid;
               });
    return hand;
}

// The lock is kept until the transaction ends. A concurrent step begins where the first began and
// does not move the hand, so that no step waits and there is one row.
Hand take_hand() {
    const bool first = ConditionalLockRelationOid(table_oid(Table::sweep), ShareRowExclusiveLock);
    Hand hand = read_hand(AccessShareLock);
    hand.moves = first;
    return hand;
}

TupleTableSlot* row_of_hand(const Hand& hand, RecordBlock block, std::optional<int> sqlstate) {
    const std::array<Datum, 2> values = {
        Int64GetDatum(static_cast<std::int64_t>(block)),
        sqlstate ? CStringGetTextDatum(unpack_sql_state(*sqlstate)) : Datum{0}};
    const std::array<bool, 2> nulls = {false, !sqlstate};
    return new_row(hand.table, values, nulls);
}

void put_block(const Hand& hand, RecordBlock block) {
    if (block == hand.block) return;
    TupleTableSlot* slot = row_of_hand(hand, block, std::nullopt);
    if (!ItemPointerIsValid(&hand.tid))
        insert_row(hand.table, slot);
    else if (try_lock_row(hand.table, hand.tid, RowChange::update) == TM_Ok)
        (void)update_row(hand.table, hand.tid, slot, compat::Waiting::yes);
    ExecDropSingleTupleTableSlot(slot);
}

void put_fault(const Hand& hand, Fault& fault, const List* tables) {
    const bool is_new = !ItemPointerIsValid(&fault.tid);
    const Oid table = table_of(fault.block);
    const bool cured =
        fault.cured || (OidIsValid(table) && !list_member_oid(tables, table));  // or dropped
    if (cured && !is_new) (void)compat::delete_row(hand.table, &fault.tid, compat::Waiting::no);
    if (cured || !is_new) return;
    TupleTableSlot* slot = row_of_hand(hand, fault.block, fault.sqlstate);
    insert_row(hand.table, slot);
    ExecDropSingleTupleTableSlot(slot);
}

// If it fails, the next step begins where this one did.
void put_hand(Sweep& sweep, Hand& hand, const List* tables) {
    ErrorData* error = !hand.moves ? nullptr : in_subtransaction([&] {
        AsOwner owner(hand.table);
        put_block(hand, sweep.hand);
        for (int i = 0; i < list_length(sweep.faults); ++i)
            put_fault(hand, *static_cast<Fault*>(list_nth(sweep.faults, i)), tables);
        owner.end();
    });
    if (error != nullptr)
        report::rows_passed_over(qualified_name(RelationGetRelid(hand.table)), 0, error);
    table_close(hand.table, NoLock);
}

bool is_any_subscribed(const Parts& all) {
    return std::any_of(all.parts, all.parts + all.size(),
                       [](const Part& part) { return part.subscribed; });
}

}  // namespace

SweepResult sweep_step(TimestampTz now, const SweepLimits& limits) {
    table_close(open_table(Table::record, RowExclusiveLock), NoLock);
    const Parts all = measure_all();
    Sweep sweep{};
    sweep.now = now;
    sweep.left = limits.records;
    sweep.blocks = limits.blocks;
    sweep.patience = limits.patience;
    SweepResult& result = sweep.result;
    result.all_blocks = blocks_before(all, every_block);
    result.subscribed = result.all_blocks == 0 && is_any_subscribed(all);
    if (result.subscribed) return result;
    learn_scopes(sweep);
    sweep.memory = AllocSetContextCreate(CurrentMemoryContext, "idem row", ALLOCSET_DEFAULT_SIZES);
    Hand hand = take_hand();
    sweep.hand = hand.block;
    sweep.faults = hand.faults;
    sweep_all(sweep, all);
    result.position = blocks_before(all, sweep.hand);
    put_hand(sweep, hand, all.tables);
    MemoryContextDelete(sweep.memory);
    sweep.scopes.destroy();
    CommandCounterIncrement();
    return result;
}

// An unlogged table cannot be read on a standby.
std::optional<PassedOver> passed_over(Oid table) {
    if (RecoveryInProgress()) return std::nullopt;
    const Hand hand = read_hand(AccessShareLock);
    table_close(hand.table, AccessShareLock);
    std::optional<PassedOver> first;
    for (int i = 0; i < list_length(hand.faults); ++i) {
        const auto* fault = static_cast<const Fault*>(list_nth(hand.faults, i));
        if (table_of(fault->block) != as_given(table)) continue;
        if (!first || fault->block < first->block)
            first = {fault->block, pstrdup(unpack_sql_state(fault->sqlstate))};
    }
    return first;
}

RecordBlock next_block() {
    if (RecoveryInProgress()) return 0;
    const Hand hand = read_hand(AccessShareLock);
    table_close(hand.table, AccessShareLock);
    return hand.block;
}

}  // namespace idem::pg
