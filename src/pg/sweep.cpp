#include "pg/sweep.hpp"

#include "pg/compat.hpp"
#include "pg/hash_table.hpp"
#include "pg/ledger.hpp"
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

// Whether an update of the table can be published or need not be: the question that
// CheckCmdReplicaIdentity() answers with an error, for a table that can do without the update.
bool may_publish_update(Relation relation) {
    PublicationDesc published;
    RelationBuildPublicationDesc(relation, &published);
    if (!published.pubactions.pubupdate) return true;
    return published.rf_valid_for_update && published.cols_valid_for_update &&
           (relation->rd_rel->relreplident == REPLICA_IDENTITY_FULL ||
            OidIsValid(RelationGetReplicaIndex(relation)));
}

// Whether a subscription of this database, enabled or not, writes the table. Its rows then belong
// to the publisher, which may still change what has expired here, because the subscription may lag.
bool is_subscribed(Relation relation) {
    ScanKeyData key;
    ScanKeyInit(&key, Anum_pg_subscription_rel_srrelid, BTEqualStrategyNumber, F_OIDEQ,
                ObjectIdGetDatum(RelationGetRelid(relation)));
    Relation subscribed = table_open(SubscriptionRelRelationId, AccessShareLock);
    SysScanDesc scan = systable_beginscan(subscribed, SubscriptionRelSrrelidSrsubidIndexId, true,
                                          nullptr, 1, &key);
    const bool found = HeapTupleIsValid(systable_getnext(scan));
    systable_endscan(scan);
    table_close(subscribed, AccessShareLock);
    return found;
}

struct KnownScope {
    std::int32_t id;  // the hash key
    bool dropped;
    std::optional<std::int64_t> answer_ttl;
    bool limited;  // has max_bytes
};

struct Sweep {
    Relation records;
    TimestampTz now;
    std::int64_t left;     // records that may still be changed
    MemoryContext memory;  // for one row
    SweepResult result;
    HashTable<std::int32_t, KnownScope> scopes;  // those that exist, and those that were dropped
    bool dropped_noted;                          // every dropped scope is known
    bool counts;                                 // for max_bytes, by the ledger
};

void purge(Sweep& sweep, TupleTableSlot* slot) {
    Assert(sweep.left > 0);
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
        scope->limited = scope_row::column(slot, scope_row::column_max_bytes).has_value();
    });
    const std::optional<List*> dropped = dropped_scopes();
    sweep.dropped_noted = dropped.has_value();
    for (int i = 0; i < list_length(dropped.value_or(NIL)); ++i) {
        bool known;
        KnownScope* scope = scopes.enter(list_nth_int(*dropped, i), known);
        if (!known) *scope = {scope->id, true, std::nullopt, false};
    }
}

const KnownScope& scope_of(Sweep& sweep, TupleTableSlot* slot) {
    const std::int32_t id = record_scope(slot);
    bool known;
    KnownScope* scope = sweep.scopes.enter(id, known);
    if (!known) *scope = {id, !sweep.dropped_noted && seems_dropped(id), std::nullopt, false};
    return *scope;
}

void erase(Sweep& sweep, TupleTableSlot* slot) {
    Assert(sweep.left > 0);
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

// The size before an answer is removed: what it gives back is found by the next round.
void count_bytes(Sweep& sweep, const KnownScope& scope, TupleTableSlot* slot) {
    if (sweep.counts && scope.limited)
        count_row(scope.id, record_tenant(slot), slot->tts_tid, row_size(slot));
}

// A record of our own transaction does not expire within it, and keeps its answer. The ledger
// counts it when it commits.
void visit(Sweep& sweep, TupleTableSlot* slot) {
    if (record_expires(slot) <= sweep.now) {
        if (!written_here(slot)) purge(sweep, slot);
        return;
    }
    const KnownScope& scope = scope_of(sweep, slot);
    if (!scope.dropped && !scope.answer_ttl && !scope.limited) return;
    if (written_here(slot)) return;
    if (scope.dropped) return purge(sweep, slot);
    count_bytes(sweep, scope, slot);
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

// The row of the hand. Its table is unlogged: after a crash or the promotion of a standby there is
// no row, and the sweep begins anew. Up to 0.2.0 the table was logged and had no key.
struct Hand {
    Relation table;
    BlockNumber block;
    ItemPointerData tid;
    bool moves;  // false: another step moves it, or moving it would stop a subscription
};

Hand read_hand(LOCKMODE mode) {
    Hand hand{open_table(Table::sweep, mode), 0, {}, false};
    visit_rows(hand.table, compat::begin_table_scan(hand.table, SnapshotSelf),
               [&hand](TupleTableSlot* slot) {
                   bool null;
                   const Datum block = slot_getattr(slot, 1, &null);
                   hand.block = static_cast<BlockNumber>(DatumGetInt64(block));
                   hand.tid = slot->tts_tid;
                   return false;
               });
    return hand;
}

// The lock is kept until the transaction ends. A concurrent step begins where the first began and
// does not move the hand, so that no step waits and there is one row. A hand that can never be
// moved is of no use: the step then begins at a random block, so that it reaches every part of a
// large table sooner or later.
Hand take_hand(BlockNumber table) {
    const bool first = ConditionalLockRelationOid(table_oid(Table::sweep), ShareRowExclusiveLock);
    Hand hand = read_hand(AccessShareLock);
    const bool movable = may_publish_update(hand.table);
    hand.moves = first && movable;
    if (!movable)
        hand.block = static_cast<BlockNumber>(pg_prng_double(&pg_global_prng_state) * table);
    return hand;
}

void put_hand(Hand& hand, BlockNumber block) {
    if (hand.moves && block != hand.block) {
        const Datum value = Int64GetDatum(block);
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

}  // namespace

SweepResult sweep_step(TimestampTz now, const SweepLimits& limits) {
    Sweep sweep{
        open_table(Table::record, RowExclusiveLock), now, limits.records, {}, {}, {}, false, false};
    SweepResult& result = sweep.result;
    result.subscribed = is_subscribed(sweep.records);
    if (result.subscribed) {
        table_close(sweep.records, NoLock);
        return result;
    }
    learn_scopes(sweep);
    sweep.memory = AllocSetContextCreate(CurrentMemoryContext, "idem row", ALLOCSET_DEFAULT_SIZES);
    result.table = RelationGetNumberOfBlocks(sweep.records);
    const BlockNumber budget = std::min(result.table, limits.blocks);
    Hand hand = take_hand(result.table);
    result.hand = result.table == 0 ? 0 : hand.block % result.table;
    sweep.counts = hand.moves && ledger_available();
    if (sweep.counts) begin_count(sweep.records, result.hand, result.table);
    if (sweep.counts && result.table == 0) end_reading(0);
    while (result.blocks < budget && sweep.left > 0) {
        const BlockNumber size =
            std::min({stretch, result.table - result.hand, budget - result.blocks});
        if (sweep.counts) begin_reading(result.hand + size);
        const BlockNumber next = sweep_stretch(sweep, result.hand, size);
        result.blocks += next - result.hand;
        result.hand = next == result.table ? 0 : next;
        if (sweep.counts) end_reading(result.hand);
    }
    if (sweep.counts) end_count();
    put_hand(hand, result.hand);
    MemoryContextDelete(sweep.memory);
    sweep.scopes.destroy();
    table_close(sweep.records, NoLock);
    CommandCounterIncrement();
    return result;
}

// An unlogged table cannot be read on a standby.
BlockNumber next_block() {
    if (RecoveryInProgress()) return 0;
    const Hand hand = read_hand(AccessShareLock);
    table_close(hand.table, AccessShareLock);
    return hand.block;
}

}  // namespace idem::pg
