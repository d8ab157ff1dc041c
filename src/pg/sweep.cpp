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

// What the error says may be of a tenant, so only the log has it.
void warn_of_passed(const char* what, const ErrorData* error) {
    const char* sqlstate = unpack_sql_state(error->sqlerrcode);
    ereport(
        WARNING,
        (errcode(error->sqlerrcode), errmsg("the purge has passed over %s", what),
         errdetail("An error with the SQLSTATE %s was raised.", sqlstate),
         errdetail_log("An error with the SQLSTATE %s was raised: %s.", sqlstate, error->message),
         errhint("Correct what the error names. The next purge reads these rows again.")));
}

void warn_of_passed_rows(Relation table, std::uint32_t block, const ErrorData* error) {
    warn_of_passed(psprintf("rows of table %s, from block %u on",
                            qualified_name(RelationGetRelid(table)), block),
                   error);
}

struct KnownScope {
    std::int32_t id;  // the hash key
    bool dropped;
    std::optional<std::int64_t> answer_ttl;
};

struct Sweep {
    TimestampTz now;
    SweepLimits limits;
    RecordBlock hand;      // where the next step begins
    Relation notes;        // the table idem.sweep
    bool moves_hand;       // false: another step does
    Relation records;      // the table that is being read
    bool rewrites;         // its answers may be removed
    bool timed_out;        // reading it: what follows is for the next step
    MemoryContext memory;  // for one row
    SweepResult result;
    HashTable<std::int32_t, KnownScope> scopes;  // those that exist, and those that were dropped

    std::int64_t changes() const { return result.deleted + result.erased; }
    bool is_full() const {
        return changes() == limits.records || result.blocks == limits.blocks || timed_out;
    }
};

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

// ---- A row --------------------------------------------------------------------------------------

// What another transaction is changing is left as it is; the next round comes back to it.

void purge(Sweep& sweep, TupleTableSlot* slot) {
    if (compat::delete_row(sweep.records, &slot->tts_tid, compat::Waiting::no) != TM_Ok) return;
    count(RecordRow(slot).scope_id(), Counter::purged);
    ++sweep.result.deleted;
}

void erase_if_outlived(Sweep& sweep, TupleTableSlot* slot, std::int64_t answer_ttl) {
    if (!sweep.rewrites) return;
    MemoryContextReset(sweep.memory);
    const MemoryContext before = MemoryContextSwitchTo(sweep.memory);
    if (has_outlived_answer(RecordRow(slot), answer_ttl, sweep.now) &&
        try_erase(sweep.records, slot))
        ++sweep.result.erased;
    MemoryContextSwitchTo(before);
}

// A record of our own transaction does not expire within it, and keeps its answer.
void visit(Sweep& sweep, TupleTableSlot* slot) {
    const RecordRow row(slot);
    const bool expired = row.expires() <= sweep.now;
    const KnownScope* scope = expired ? nullptr : sweep.scopes.find(row.scope_id());
    const bool stays = scope == nullptr || (!scope->dropped && !scope->answer_ttl);
    if ((!expired && stays) || written_here(slot)) return;
    if (expired || scope->dropped)
        purge(sweep, slot);
    else
        erase_if_outlived(sweep, slot, *scope->answer_ttl);
}

// ---- The table idem.sweep -----------------------------------------------------------------------

// A row of the table: the hand, or blocks that were passed over. The table is unlogged: after a
// crash or the promotion of a standby there is no row, and the sweep begins anew.
struct Note {
    RecordBlock block;     // stored as a signed number
    const char* sqlstate;  // of the error; NULL: the hand
    ItemPointerData tid;
};
constexpr int max_notes = 100;

template <class Visit>
void for_each_note(Relation notes, Visit visit) {
    visit_rows(notes, compat::begin_table_scan(notes, SnapshotSelf), [&](TupleTableSlot* slot) {
        bool null;
        const auto block = static_cast<RecordBlock>(DatumGetInt64(slot_getattr(slot, 1, &null)));
        const Datum sqlstate = slot_getattr(slot, 2, &null);
        visit(Note{block, null ? nullptr : TextDatumGetCString(sqlstate), slot->tts_tid});
    });
}

Note read_hand(Relation notes) {
    Note hand{};
    for_each_note(notes, [&](const Note& note) {
        if (note.sqlstate == nullptr) hand = note;
    });
    return hand;
}

TupleTableSlot* row_of(Relation notes, RecordBlock block, const char* sqlstate) {
    const std::array<Datum, 2> values = {
        Int64GetDatum(static_cast<std::int64_t>(block)),
        sqlstate == nullptr ? Datum{0} : CStringGetTextDatum(sqlstate)};
    const std::array<bool, 2> nulls = {false, sqlstate == nullptr};
    return new_row(notes, values, nulls);
}

// Changes the table as its owner. If that fails, it stays as it is.
template <class Change>
void change_notes(Sweep& sweep, Change change) {
    if (!sweep.moves_hand) return;
    ErrorData* error = in_subtransaction([&] {
        AsOwner owner(sweep.notes);
        change();
        owner.end();
    });
    if (error != nullptr) warn_of_passed_rows(sweep.notes, 0, error);
}

template <class IsOutdated>
void delete_notes(Sweep& sweep, IsOutdated is_outdated) {
    for_each_note(sweep.notes, [&](Note note) {
        if (note.sqlstate != nullptr && is_outdated(note))
            (void)compat::delete_row(sweep.notes, &note.tid, compat::Waiting::no);
    });
}

void add_note(Sweep& sweep, RecordBlock block, const char* sqlstate) {
    TupleTableSlot* slot = row_of(sweep.notes, block, sqlstate);
    insert_row(sweep.notes, slot);
    ExecDropSingleTupleTableSlot(slot);
}

// Notes that these blocks were passed over because of the error; or, if there is none, that they
// were read. The worker logs what is not noted yet; a caller of purge() is told each time.
void note(Sweep& sweep, RecordBlock from, RecordBlock until, const ErrorData* error) {
    const char* sqlstate =
        error == nullptr ? nullptr : pstrdup(unpack_sql_state(error->sqlerrcode));
    const auto is_outdated = [=](const Note& note) {
        return note.block >= from && note.block < until &&
               (sqlstate == nullptr || strcmp(note.sqlstate, sqlstate) != 0);
    };
    bool known = false;
    bool outdated = false;
    int notes = 0;
    for_each_note(sweep.notes, [&](const Note& note) {
        if (note.sqlstate == nullptr) return;
        ++notes;
        if (is_outdated(note))
            outdated = true;
        else if (note.block >= from && note.block < until)
            known = true;
    });
    const bool adds = error != nullptr && !known && notes < max_notes;
    if (outdated || adds)
        change_notes(sweep, [&] {
            delete_notes(sweep, is_outdated);
            if (adds) add_note(sweep, from, sqlstate);
        });
    if (error != nullptr && (!known || sweep.limits.patience == 0))
        warn_of_passed_rows(sweep.records, number_of(from), error);
}

// The lock is kept until the transaction ends. A concurrent step begins where the first began and
// does not move the hand, so that no step waits and there is one row.
Note take_hand(Sweep& sweep) {
    sweep.moves_hand = ConditionalLockRelationOid(table_oid(Table::sweep), ShareRowExclusiveLock);
    sweep.notes = open_table(Table::sweep, AccessShareLock);
    const Note hand = read_hand(sweep.notes);
    sweep.hand = hand.block;
    return hand;
}

void put_hand(Sweep& sweep, Note hand) {
    if (sweep.hand == hand.block) return;
    if (ItemPointerIsValid(&hand.tid)) {
        TupleTableSlot* slot = row_of(sweep.notes, sweep.hand, nullptr);
        if (try_lock_row(sweep.notes, hand.tid, RowChange::update) == TM_Ok)
            (void)update_row(sweep.notes, hand.tid, slot);
        ExecDropSingleTupleTableSlot(slot);
    } else {
        add_note(sweep, sweep.hand, nullptr);
    }
}

// ---- A stretch ----------------------------------------------------------------------------------

constexpr int longest_wait = 1000;  // for a lock, in milliseconds

// Runs work() in a subtransaction. Returns its error, after which it counts as not done.
template <class Work>
ErrorData* attempt(Sweep& sweep, Work work) {
    const SweepResult before = sweep.result;
    ErrorData* error = in_subtransaction(work);
    if (error != nullptr) sweep.result = before;
    return error;
}

bool is_cancelled(const ErrorData* error) {
    return error != nullptr && error->sqlerrcode == ERRCODE_QUERY_CANCELED;
}

// A statement that is cancelled ends, unless it was the time limit of the table.
template <class Work>
ErrorData* attempt_on_table(Sweep& sweep, Work work) {
    const int patience = sweep.limits.patience;
    if (patience > 0) enable_timeout_after(STATEMENT_TIMEOUT, patience);
    ErrorData* error = attempt(sweep, [&] {
        AsOwner owner(sweep.records);
        set_lock_timeout(longest_wait);
        work();
        owner.end();
    });
    if (patience > 0) {
        disable_timeout(STATEMENT_TIMEOUT, false);
        QueryCancelPending = false;
    } else if (is_cancelled(error)) {
        ReThrowError(error);
    }
    return error;
}

enum class Rows : bool { together, one_by_one };  // in a subtransaction for each

// Reads the stretch and sets next to the block at which to go on: the one after the stretch, or the
// one where the limit was reached. Returns the error that ended it, or else the first of a row.
ErrorData* read_stretch(Sweep& sweep, BlockNumber first, BlockNumber size, Rows rows,
                        BlockNumber& next) {
    ErrorData* of_a_row = nullptr;
    next = first + size;
    ErrorData* error = attempt_on_table(sweep, [&] {
        scan_blocks(sweep.records, first, size, [&](TupleTableSlot* slot) {
            if (sweep.changes() == sweep.limits.records) {
                next = ItemPointerGetBlockNumber(&slot->tts_tid);
                return false;
            }
            ++sweep.result.seen;
            if (rows == Rows::together) {
                visit(sweep, slot);
                return true;
            }
            ErrorData* failure = attempt(sweep, [&] { visit(sweep, slot); });
            if (is_cancelled(failure)) ReThrowError(failure);
            if (of_a_row == nullptr)
                of_a_row = failure;
            else if (failure != nullptr)
                FreeErrorData(failure);
            return true;
        });
    });
    Assert(next >= first && next <= first + size);
    if (error == nullptr) return of_a_row;
    next = first + size;
    return error;
}

BlockNumber sweep_stretch(Sweep& sweep, BlockNumber first, BlockNumber size) {
    const Oid table = RelationGetRelid(sweep.records);
    BlockNumber next;
    ErrorData* error = read_stretch(sweep, first, size, Rows::together, next);
    sweep.timed_out = is_cancelled(error);
    if (error != nullptr && !sweep.timed_out)
        error = read_stretch(sweep, first, size, Rows::one_by_one, next);
    note(sweep, record_block(table, first), record_block(table, next), error);
    return next;
}

// Reads the table from one block to another. False if a limit was reached before that.
bool sweep_blocks(Sweep& sweep, BlockNumber from, BlockNumber until) {
    const Oid table = RelationGetRelid(sweep.records);
    for (BlockNumber block = from; block < until;) {
        if (sweep.is_full()) return false;
        const auto size = static_cast<BlockNumber>(std::min<std::int64_t>(
            {stretch, until - block, sweep.limits.blocks - sweep.result.blocks}));
        const BlockNumber next = sweep_stretch(sweep, block, size);
        sweep.result.blocks += next - block;
        block = next;
        sweep.hand = record_block(table, block);
    }
    return true;
}

// ---- All tables ---------------------------------------------------------------------------------

// A record table as the step finds it. One that is locked against the purge, or not a record table,
// has no blocks.
struct Part {
    Oid table;
    BlockNumber blocks;
    bool subscribed;
};
using Parts = std::span<const Part>;

void measure(Part& part) {
    Relation relation = open_records_at_once(part.table, RowExclusiveLock);
    if (relation == nullptr) return;
    part.subscribed = is_subscribed(relation);
    part.blocks = RelationGetNumberOfBlocks(relation);
    table_close(relation, RowExclusiveLock);
}

Parts measure_all() {
    const List* tables = record_tables();
    const auto size = static_cast<std::size_t>(list_length(tables));
    auto* parts = static_cast<Part*>(palloc(sizeof(Part) * size));
    for (std::size_t i = 0; i < size; ++i) {
        Part& part = parts[i];
        part = {list_nth_oid(tables, static_cast<int>(i)), 0, false};
        ErrorData* error = in_subtransaction([&part] { measure(part); });
        if (error != nullptr)
            warn_of_passed(psprintf("the table with the OID %u", part.table), error);
    }
    return {parts, size};
}

// Of the table with this number, or of the first one after the last.
RecordBlock first_block(Parts parts, std::size_t table) {
    return table == parts.size() ? 0 : record_block(parts[table].table, 0);
}

// Reads the part's blocks from one to another. The lock on a table that was changed is kept until
// the transaction ends. False if a limit was reached.
bool sweep_part(Sweep& sweep, const Part& part, BlockNumber from, BlockNumber until) {
    if (part.subscribed) return true;
    sweep.records = open_records_at_once(part.table, RowExclusiveLock);
    if (sweep.records == nullptr) return true;
    const std::int64_t changes = sweep.changes();
    bool complete = true;
    if (!is_subscribed(sweep.records)) {  // since it was measured
        sweep.rewrites = !OidIsValid(keeps_from_rewriting(sweep.records));
        const BlockNumber blocks = RelationGetNumberOfBlocks(sweep.records);
        complete = sweep_blocks(sweep, from, std::min(until, blocks));
        if (complete && until > blocks)  // what VACUUM has cut off is in order
            note(sweep, record_block(part.table, blocks), record_block(part.table, MaxBlockNumber),
                 nullptr);
    }
    table_close(sweep.records, sweep.changes() == changes ? RowExclusiveLock : NoLock);
    return complete;
}

// From the hand through all tables and, at last, up to the hand again: each block at most once. If
// the table of the hand is gone, the step begins at the next one.
void sweep_all(Sweep& sweep, Parts parts) {
    const std::size_t tables = parts.size();
    std::size_t found = 0;
    while (found < tables && record_block(parts[found].table, MaxBlockNumber) < sweep.hand) ++found;
    if (found == tables || first_block(parts, found) > sweep.hand)
        sweep.hand = first_block(parts, found);
    const RecordBlock start = sweep.hand;
    std::size_t table = found;
    for (std::size_t i = 0; i <= tables && !sweep.is_full(); ++i, ++table) {
        if (table == tables) table = 0;
        const bool last = i == tables;
        const BlockNumber from = i == 0 ? number_of(start) : 0;
        const BlockNumber until = last ? number_of(start) : MaxBlockNumber;
        if (last && until == 0) return;
        if (!sweep_part(sweep, parts[table], from, until)) return;
        sweep.hand = last ? start : first_block(parts, table + 1);
    }
}

bool is_among(Parts parts, Oid table) {
    return std::ranges::any_of(parts, [=](const Part& part) { return part.table == table; });
}

}  // namespace

SweepResult sweep_step(TimestampTz now, const SweepLimits& limits) {
    table_close(open_table(Table::record, RowExclusiveLock), NoLock);
    const Parts parts = measure_all();
    Sweep sweep{};
    sweep.now = now;
    sweep.limits = limits;
    SweepResult& result = sweep.result;
    for (const Part& part : parts) {
        if (!part.subscribed) result.all_blocks += part.blocks;
        result.subscribed |= part.subscribed;
    }
    result.subscribed &= result.all_blocks == 0;
    if (result.subscribed) return result;
    learn_scopes(sweep);
    sweep.memory = AllocSetContextCreate(CurrentMemoryContext, "idem row", ALLOCSET_DEFAULT_SIZES);
    const Note hand = take_hand(sweep);
    sweep_all(sweep, parts);
    change_notes(sweep, [&] {
        put_hand(sweep, hand);
        delete_notes(sweep, [&](const Note& note) {  // of tables that were dropped
            const Oid table = table_of(note.block);
            return table != common_records && !is_among(parts, table);
        });
    });
    table_close(sweep.notes, NoLock);
    MemoryContextDelete(sweep.memory);
    sweep.scopes.destroy();
    CommandCounterIncrement();
    return result;
}

// An unlogged table cannot be read on a standby.
std::optional<PassedOver> passed_over(Oid table) {
    if (RecoveryInProgress()) return std::nullopt;
    std::optional<PassedOver> first;
    Relation notes = open_table(Table::sweep, AccessShareLock);
    for_each_note(notes, [&](const Note& note) {
        if (note.sqlstate == nullptr || table_of(note.block) != as_given(table)) return;
        if (!first || note.block < first->block) first = {note.block, note.sqlstate};
    });
    table_close(notes, AccessShareLock);
    return first;
}

}  // namespace idem::pg
