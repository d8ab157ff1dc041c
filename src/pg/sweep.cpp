#include "pg/sweep.hpp"

#include "pg/compat.hpp"
#include "pg/hash_table.hpp"
#include "pg/lock.hpp"
#include "pg/record.hpp"
#include "pg/scope.hpp"
#include "pg/scope_ids.hpp"
#include "pg/stats.hpp"
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

struct Sweep {
    TimestampTz now;
    std::int64_t left;     // records that may still be changed
    std::int64_t blocks;   // that may still be read
    RecordBlock hand;      // where the next step begins
    Relation records;      // the table that is being read
    bool changed;          // something in it
    MemoryContext memory;  // for one row
    SweepResult result;
    HashTable<std::int32_t, KnownScope> scopes;  // those that exist, and those that were dropped

    bool is_full() const { return left == 0 || blocks == 0; }
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
    const bool erased = try_erase(sweep.records, slot);
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

// Returns the block at which to go on: the one after the stretch, or the one where the limit was
// reached.
BlockNumber sweep_stretch(Sweep& sweep, BlockNumber first, BlockNumber size) {
    BlockNumber next = first + size;
    scan_blocks(sweep.records, first, size, [&](TupleTableSlot* slot) {
        if (sweep.left == 0) {
            next = ItemPointerGetBlockNumber(&slot->tts_tid);
            return false;
        }
        ++sweep.result.seen;
        visit(sweep, slot);
        return true;
    });
    Assert(next >= first && next <= first + size);
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
    for (int i = 0; i < all.size(); ++i) all.parts[i] = measure(list_nth_oid(all.tables, i));
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
    const BlockNumber blocks = RelationGetNumberOfBlocks(sweep.records);
    const bool complete = sweep_blocks(sweep, from, std::min(until, blocks));
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
    bool moves;  // false: another step moves it
};

Hand read_hand(LOCKMODE mode) {
    Hand hand{open_table(Table::sweep, mode), 0, {}, false};
    visit_rows(hand.table, compat::begin_table_scan(hand.table, SnapshotSelf),
               [&hand](TupleTableSlot* slot) {
                   bool null;
                   const Datum block = slot_getattr(slot, 1, &null);
                   hand.block = static_cast<RecordBlock>(DatumGetInt64(block));
                   hand.tid = slot->tts_tid;
                   return false;
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

void put_hand(Hand& hand, RecordBlock block) {
    if (hand.moves && block != hand.block) {
        const Datum value = Int64GetDatum(static_cast<std::int64_t>(block));
        const bool null = false;
        TupleTableSlot* slot = new_row(hand.table, {&value, 1}, {&null, 1});
        if (!ItemPointerIsValid(&hand.tid))
            insert_row(hand.table, slot);
        else if (try_lock_row(hand.table, hand.tid, RowChange::update) == TM_Ok)
            (void)update_row(hand.table, hand.tid, slot, compat::Waiting::yes);
        ExecDropSingleTupleTableSlot(slot);
    }
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
    SweepResult& result = sweep.result;
    result.all_blocks = blocks_before(all, every_block);
    result.subscribed = result.all_blocks == 0 && is_any_subscribed(all);
    if (result.subscribed) return result;
    learn_scopes(sweep);
    sweep.memory = AllocSetContextCreate(CurrentMemoryContext, "idem row", ALLOCSET_DEFAULT_SIZES);
    Hand hand = take_hand();
    sweep.hand = hand.block;
    sweep_all(sweep, all);
    result.position = blocks_before(all, sweep.hand);
    put_hand(hand, sweep.hand);
    MemoryContextDelete(sweep.memory);
    sweep.scopes.destroy();
    CommandCounterIncrement();
    return result;
}

// An unlogged table cannot be read on a standby.
RecordBlock next_block() {
    if (RecoveryInProgress()) return 0;
    const Hand hand = read_hand(AccessShareLock);
    table_close(hand.table, AccessShareLock);
    return hand.block;
}

}  // namespace idem::pg
