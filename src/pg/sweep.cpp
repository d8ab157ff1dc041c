#include "pg/sweep.hpp"

#include "pg/compat.hpp"
#include "pg/lock.hpp"
#include "pg/record.hpp"
#include "pg/scope.hpp"
#include "pg/scope_ids.hpp"
#include "pg/stats.hpp"
#include "pg/table.hpp"

namespace idem::pg {
namespace {

// How many blocks one scan covers: its ring of buffers is filled anew each time.
constexpr BlockNumber stretch = 1024;

struct Sweep {
    Relation records;
    TimestampTz now;
    std::int64_t left;
    Swept result;
    HTAB* scopes;        // of KnownScope: those that there are, and those that were dropped
    bool dropped_noted;  // every dropped one is known
};

struct KnownScope {
    std::int32_t id;  // the hash key
    bool dropped;
};

void purge(Sweep& sweep, TupleTableSlot* slot) {
    if (compat::delete_row(sweep.records, &slot->tts_tid, compat::Waiting::no) != TM_Ok)
        return;  // somebody is at it; the next round will see
    count(record_scope(slot), Counter::purged);
    ++sweep.result.deleted;
    --sweep.left;
}

KnownScope* enter(HTAB* scopes, std::int32_t id, bool& known) {
    return static_cast<KnownScope*>(hash_search(scopes, &id, HASH_ENTER, &known));
}

// All at once: to look for each on its own takes too long where there are thousands. The match
// never matches, so that the scan sees every scope. One that is there was not dropped, whatever is
// noted.
void learn_scopes(Sweep& sweep) {
    HASHCTL control{};
    control.keysize = sizeof(std::int32_t);
    control.entrysize = sizeof(KnownScope);
    control.hcxt = CurrentMemoryContext;
    sweep.scopes =
        hash_create("idem scopes of a sweep", 16, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
    const auto note = [scopes = sweep.scopes](TupleTableSlot* slot) {
        bool known;
        enter(scopes, DatumGetInt32(*scope_row::column(slot, scope_row::column_id)), known)
            ->dropped = false;
        return false;
    };
    (void)scope_row::scan_for(note, [](TupleTableSlot*) {});
    const std::optional<List*> dropped = dropped_scopes();
    sweep.dropped_noted = dropped.has_value();
    for (int i = 0; i < list_length(dropped.value_or(NIL)); ++i) {
        bool known;
        KnownScope* scope = enter(sweep.scopes, list_nth_int(*dropped, i), known);
        if (!known) scope->dropped = true;
    }
}

bool is_orphaned(const Sweep& sweep, TupleTableSlot* slot) {
    const std::int32_t id = record_scope(slot);
    bool known;
    KnownScope* scope = enter(sweep.scopes, id, known);
    if (!known) scope->dropped = !sweep.dropped_noted && seems_dropped(id);
    return scope->dropped;
}

// Returns the block at which to go on: the one after the stretch, or where the allowance ran out.
BlockNumber sweep_stretch(Sweep& sweep, BlockNumber first, BlockNumber size) {
    TupleTableSlot* slot = table_slot_create(sweep.records, nullptr);
    TableScanDesc scan = scan_blocks(sweep.records, first, size);
    BlockNumber next = first + size;
    while (table_scan_getnextslot(scan, ForwardScanDirection, slot)) {
        CHECK_FOR_INTERRUPTS();
        if (sweep.left == 0) {
            next = ItemPointerGetBlockNumber(&slot->tts_tid);
            break;
        }
        ++sweep.result.seen;
        const bool over = record_expires(slot) <= sweep.now || is_orphaned(sweep, slot);
        if (over && !written_here(slot)) purge(sweep, slot);  // ours does not expire within us
    }
    table_endscan(scan);
    ExecDropSingleTupleTableSlot(slot);
    return next;
}

// The hand's row. Its table is unlogged: after a crash, or a standby's promotion, there is none,
// and the sweep begins anew. Up to 0.2.0 it was logged, and had no key.
struct Hand {
    Relation table;
    BlockNumber block;
    ItemPointerData tid;
    bool moves;  // no: another step moves it, or that would stop a subscription
};

Hand read_hand(LOCKMODE mode) {
    Hand hand{open_table(Table::sweep, mode), 0, {}, false};
    TableScanDesc scan = compat::begin_table_scan(hand.table, SnapshotSelf);
    TupleTableSlot* slot = table_slot_create(hand.table, nullptr);
    if (table_scan_getnextslot(scan, ForwardScanDirection, slot)) {
        bool null;
        hand.block = static_cast<BlockNumber>(DatumGetInt64(slot_getattr(slot, 1, &null)));
        hand.tid = slot->tts_tid;
    }
    ExecDropSingleTupleTableSlot(slot);
    table_endscan(scan);
    return hand;
}

// The lock is kept to the end of the transaction: whoever comes second begins where the first
// began, and leaves the hand to it, so that nobody waits and there is one row. A hand that can
// never be moved is of no use: then any block is as good as another, so that no part of a large
// table is left out for ever.
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

Swept sweep_step(TimestampTz now, const SweepLimits& limits) {
    Sweep sweep{
        open_table(Table::record, RowExclusiveLock), now, limits.records, {}, nullptr, false};
    Swept& result = sweep.result;
    result.subscribed = is_subscribed(sweep.records);
    if (result.subscribed) {
        table_close(sweep.records, NoLock);
        return result;
    }
    learn_scopes(sweep);
    result.table = RelationGetNumberOfBlocks(sweep.records);
    const BlockNumber budget = std::min(result.table, limits.blocks);
    Hand hand = take_hand(result.table);
    result.hand = result.table == 0 ? 0 : hand.block % result.table;
    while (result.blocks < budget && sweep.left > 0) {
        const BlockNumber size =
            std::min({stretch, result.table - result.hand, budget - result.blocks});
        const BlockNumber next = sweep_stretch(sweep, result.hand, size);
        result.blocks += next - result.hand;
        result.hand = next == result.table ? 0 : next;
    }
    put_hand(hand, result.hand);
    hash_destroy(sweep.scopes);
    table_close(sweep.records, NoLock);
    CommandCounterIncrement();
    return result;
}

// What is unlogged cannot be read on a standby.
BlockNumber next_block() {
    if (RecoveryInProgress()) return 0;
    const Hand hand = read_hand(AccessShareLock);
    table_close(hand.table, AccessShareLock);
    return hand.block;
}

bool may_publish_update(Relation relation) {
    PublicationDesc published;
    RelationBuildPublicationDesc(relation, &published);
    if (!published.pubactions.pubupdate) return true;
    return published.rf_valid_for_update && published.cols_valid_for_update &&
           (relation->rd_rel->relreplident == REPLICA_IDENTITY_FULL ||
            OidIsValid(RelationGetReplicaIndex(relation)));
}

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

}  // namespace idem::pg
