#include "pg/purge.hpp"

#include "pg/server/hash_table.hpp"
#include "pg/server/owner.hpp"
#include "pg/server/subtransaction.hpp"
#include "pg/shared/stats.hpp"
#include "pg/store/record.hpp"
#include "pg/store/scope.hpp"
#include "pg/store/scope_ids.hpp"
#include "pg/store/table.hpp"

extern "C" {
#include "catalog/pg_subscription_rel.h"
}

namespace idem::pg {
namespace {

// The number of blocks per scan: each scan fills its ring of buffers anew.
constexpr BlockNumber stretch = 1024;

bool is_in_subscription(Oid relation) {
    CatCList* subscriptions = SearchSysCacheList1(SUBSCRIPTIONRELMAP, ObjectIdGetDatum(relation));
    const bool found = subscriptions->n_members > 0;
    ReleaseSysCacheList(subscriptions);
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
    std::int64_t deleted;  // of its records, in the attempt that is running
};

struct Purge {
    TimestampTz now;
    PurgeLimits limits;
    RecordBlock position;   // where the next step begins
    Relation progress;      // the table idem.purge_progress
    bool saves_progress;    // false: another step does
    List* notes;            // what is in it, and what is to be
    Relation records;       // the record table that is being read
    bool rewrites;          // its answers may be removed
    std::int64_t deadline;  // by the steady clock: what follows is for the next step; 0: none
    MemoryContext memory;   // for one row
    PurgeResult result;
    HashTable<std::int32_t, KnownScope> scopes;  // that exist, and that were dropped

    bool is_full() const {
        return result.purged == limits.records || result.blocks == limits.blocks ||
               (deadline != 0 && steady_now() >= deadline);
    }
};

// Reads all scopes at once: looking up each by itself takes too long where there are thousands. A
// scope that exists was not dropped, whatever is noted.
void learn_scopes(Purge& purge) {
    auto& scopes = purge.scopes;
    scopes.create("idem scopes of a purge", 16, CurrentMemoryContext);
    scan_committed(Table::scope, [&scopes](TupleTableSlot* slot) {
        bool known;
        KnownScope* scope = scopes.enter(scope_row::id_of(slot), known);
        *scope = {scope->id, false, std::nullopt, 0};
        const auto answer_ttl = scope_row::column(slot, scope_row::column_of("answer_ttl"));
        if (answer_ttl) read_value(scope->answer_ttl, *answer_ttl);
    });
    const List* dropped = dropped_scopes();
    for (int i = 0; i < list_length(dropped); ++i) {
        bool known;
        KnownScope* scope = scopes.enter(list_nth_int(dropped, i), known);
        if (!known) *scope = {scope->id, true, std::nullopt, 0};
    }
}

// What an attempt has deleted is counted when it has succeeded; what has failed was rolled back.
void count_deleted(Purge& purge, bool succeeded) {
    purge.scopes.for_each([succeeded](KnownScope& scope) {
        if (succeeded && scope.deleted > 0) count(scope.id, Counter::purged, scope.deleted);
        scope.deleted = 0;
    });
}

// ---- A row --------------------------------------------------------------------------------------

// A record of our own transaction does not expire within it, and keeps its answer. What another
// transaction is changing is left as it is; the next round comes back to it.
void purge_row(Purge& purge, TupleTableSlot* slot) {
    const Record row(slot);
    KnownScope* scope = purge.scopes.find(row.scope_id());
    const bool expired = row.expires() <= purge.now || (scope != nullptr && scope->dropped);
    const bool stays = scope == nullptr || !scope->answer_ttl;
    if ((!expired && stays) || written_here(slot)) return;
    MemoryContextReset(purge.memory);  // triggers leave something, too
    const MemoryContext before = MemoryContextSwitchTo(purge.memory);
    const bool purged =
        expired ? delete_row(purge.records, slot->tts_tid, compat::Waiting::no) == TM_Ok
                : purge.rewrites &&
                      erase_expired_answer(purge.records, slot, *scope->answer_ttl, purge.now);
    MemoryContextSwitchTo(before);
    if (!purged) return;
    if (expired && scope != nullptr && !scope->dropped) ++scope->deleted;
    ++purge.result.purged;
}

// ---- The table idem.purge_progress --------------------------------------------------------------

// A row of the table: the position, or blocks that were passed over. The table is unlogged: after a
// crash or the promotion of a standby there is no row, and the purge begins anew.
struct Note {
    RecordBlock block;     // stored as a signed number
    const char* sqlstate;  // of the error; NULL: the position
    ItemPointerData tid;   // not valid: the row is to be inserted
    bool outdated;         // it is to be deleted
};
constexpr int max_notes = 100;

List* add_note(List* notes, const Note& note) {
    return lappend(notes, memcpy(palloc(sizeof(Note)), &note, sizeof(Note)));
}

List* read_notes(Relation progress) {
    List* notes = NIL;
    scan_rows(progress, SnapshotSelf, [&notes](TupleTableSlot* slot) {
        bool null;
        const auto block = static_cast<RecordBlock>(DatumGetInt64(slot_getattr(slot, 1, &null)));
        const Datum sqlstate = slot_getattr(slot, 2, &null);
        notes = add_note(
            notes, {block, null ? nullptr : TextDatumGetCString(sqlstate), slot->tts_tid, false});
    });
    return notes;
}

template <class Visit>
void for_each_note(const List* notes, Visit visit) {
    for (int i = 0; i < list_length(notes); ++i) visit(*static_cast<Note*>(list_nth(notes, i)));
}

// Notes that these blocks were passed over because of the error; or, if there is none, that they
// were read. Returns whether to warn: the worker logs what is not noted yet; a caller of purge() is
// told each time.
bool note(Purge& purge, RecordBlock from, RecordBlock until, const ErrorData* error) {
    const char* sqlstate = error == nullptr ? "" : pstrdup(unpack_sql_state(error->sqlerrcode));
    bool known = false;
    for_each_note(purge.notes, [&](Note& note) {
        if (note.sqlstate == nullptr || note.block < from || note.block >= until) return;
        if (strcmp(note.sqlstate, sqlstate) == 0)
            known = true;
        else
            note.outdated = true;
    });
    if (error == nullptr) return false;
    if (!known && list_length(purge.notes) < max_notes)
        purge.notes = add_note(purge.notes, {from, sqlstate, {}, false});
    return !known || purge.limits.time_limit_ms == 0;
}

// The lock is kept until the transaction ends. A concurrent step begins where its caller says, or
// else where the first began, and saves nothing, so that no step waits and there is one position.
void read_position(Purge& purge) {
    purge.saves_progress = as_transaction_owner([] {
        return ConditionalLockRelationOid(table_oid(Table::purge_progress), ShareRowExclusiveLock);
    });
    purge.progress = open_table(Table::purge_progress, AccessShareLock);
    purge.notes = read_notes(purge.progress);
    for_each_note(purge.notes, [&purge](const Note& note) {
        if (note.sqlstate == nullptr) purge.position = note.block;
    });
    if (!purge.saves_progress && purge.limits.otherwise_from)
        purge.position = *purge.limits.otherwise_from;
}

void note_position(Purge& purge) {
    bool known = false;
    for_each_note(purge.notes, [&](Note& note) {
        if (note.sqlstate != nullptr) return;
        note.outdated = known || note.block != purge.position;
        known = known || !note.outdated;
    });
    if (!known) purge.notes = add_note(purge.notes, {purge.position, nullptr, {}, false});
}

void insert_note(Relation progress, const Note& note) {
    Row<2> row;
    row.set(0, Int64GetDatum(static_cast<std::int64_t>(note.block)));
    if (note.sqlstate != nullptr) row.set_text(1, note.sqlstate);
    insert_row(progress, row.values(), row.nulls());
}

bool is_cancelled(const ErrorData* error) {
    return error != nullptr && error->sqlerrcode == ERRCODE_QUERY_CANCELED;
}

// A statement that is cancelled ends, unless it was the time limit of a table.
void end_if_cancelled(const Purge& purge, ErrorData* error) {
    if (purge.limits.time_limit_ms == 0 && is_cancelled(error)) ReThrowError(error);
}

// As the table's owner. If it fails, the table stays as it is. A row that another transaction has
// locked stays too, until a later step deletes it.
void save_progress(Purge& purge) {
    if (!purge.saves_progress) return;
    note_position(purge);
    ErrorData* error = in_subtransaction([&purge] {
        AsOwner owner(purge.progress);
        for_each_note(purge.notes, [&purge](Note& note) {
            const bool stored = ItemPointerIsValid(&note.tid);
            if (!stored && !note.outdated) insert_note(purge.progress, note);
            if (stored && note.outdated)
                (void)delete_row(purge.progress, note.tid, compat::Waiting::no);
        });
        owner.end();
    });
    end_if_cancelled(purge, error);
    if (error != nullptr) warn_of_passed_rows(purge.progress, 0, error);
}

// ---- A stretch ----------------------------------------------------------------------------------

constexpr int longest_lock_wait_ms = 1000;  // for a lock, in milliseconds

// Runs work() in a subtransaction. Returns its error, after which it counts as not done.
template <class Work>
ErrorData* attempt(Purge& purge, Work work) {
    const PurgeResult before = purge.result;
    ErrorData* error = in_subtransaction(work);
    if (error != nullptr) purge.result = before;
    return error;
}

template <class Work>
ErrorData* attempt_on_table(Purge& purge, Work work) {
    const int time_limit_ms = purge.limits.time_limit_ms;
    const std::int64_t before = purge.result.purged;
    if (time_limit_ms > 0) enable_timeout_after(STATEMENT_TIMEOUT, time_limit_ms);
    ErrorData* error = attempt(purge, [&] {
        AsOwner owner(purge.records);
        set_lock_timeout(longest_lock_wait_ms);
        work();
        owner.end();
    });
    if (error != nullptr || purge.result.purged > before) count_deleted(purge, error == nullptr);
    if (time_limit_ms > 0) {
        disable_timeout(STATEMENT_TIMEOUT, false);
        QueryCancelPending = false;
    }
    end_if_cancelled(purge, error);
    return error;
}

enum class Rows : bool { together, one_by_one };  // in a subtransaction for each

// Reads the stretch and sets next to the block at which to go on: the one after the stretch, or the
// one where the limit was reached. Returns the error that ended it, or else the first of a row.
ErrorData* read_stretch(Purge& purge, BlockNumber first, BlockNumber size, Rows rows,
                        BlockNumber& next) {
    ErrorData* of_a_row = nullptr;
    next = first + size;
    ErrorData* error = attempt_on_table(purge, [&] {
        scan_blocks(purge.records, SnapshotSelf, first, size, [&](TupleTableSlot* slot) {
            if (purge.result.purged == purge.limits.records) {
                next = ItemPointerGetBlockNumber(&slot->tts_tid);
                return false;
            }
            ++purge.result.seen;
            if (rows == Rows::together) {
                purge_row(purge, slot);
                return true;
            }
            ErrorData* failure = attempt(purge, [&] { purge_row(purge, slot); });
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

BlockNumber purge_stretch(Purge& purge, BlockNumber first, BlockNumber size) {
    const Oid table = RelationGetRelid(purge.records);
    BlockNumber next;
    ErrorData* error = read_stretch(purge, first, size, Rows::together, next);
    if (error != nullptr && !is_cancelled(error))
        error = read_stretch(purge, first, size, Rows::one_by_one, next);
    if (note(purge, record_block(table, first), record_block(table, next), error))
        warn_of_passed_rows(purge.records, first, error);
    return next;
}

// Reads the table from one block to another. False if a limit was reached before that.
bool purge_blocks(Purge& purge, BlockNumber from, BlockNumber until) {
    const Oid table = RelationGetRelid(purge.records);
    for (BlockNumber block = from; block < until;) {
        if (purge.is_full()) return false;
        const auto size = static_cast<BlockNumber>(std::min<std::int64_t>(
            {stretch, until - block, purge.limits.blocks - purge.result.blocks}));
        const BlockNumber next = purge_stretch(purge, block, size);
        purge.result.blocks += next - block;
        block = next;
        purge.position = record_block(table, block);
    }
    return true;
}

// ---- All tables ---------------------------------------------------------------------------------

// The tables that can be read. Counts their blocks. A table that is locked against the purge, or
// not a record table, is left out; so is one whose file is missing, which is noted.
List* measure(Purge& purge, const List* tables) {
    PurgeResult& result = purge.result;
    List* readable = NIL;
    for (int i = 0; i < list_length(tables); ++i) {
        const Oid table = list_nth_oid(tables, i);
        bool measured = false;
        ErrorData* error = in_subtransaction([&result, &measured, table] {
            Relation relation = open_records_at_once(table, RowExclusiveLock);
            if (relation == nullptr) return;
            if (is_subscribed(relation))
                result.subscribed = true;
            else if (!untrusted_trigger(relation))
                result.all_blocks += RelationGetNumberOfBlocks(relation);
            table_close(relation, RowExclusiveLock);
            measured = true;
        });
        end_if_cancelled(purge, error);
        if (error != nullptr &&
            note(purge, record_block(table, 0), record_block(table, MaxBlockNumber), error))
            warn_of_passed(psprintf("the table with the OID %u", table), error);
        if (measured) readable = lappend_oid(readable, table);
    }
    result.subscribed &= result.all_blocks == 0;
    return readable;
}

// Of the table with this number, or of the first one after the last.
RecordBlock first_block(const List* tables, int number) {
    return number == list_length(tables) ? 0 : record_block(list_nth_oid(tables, number), 0);
}

// Reads the table's blocks from one to another. The lock on a table that was changed is kept until
// the transaction ends. False if a limit was reached.
bool purge_table(Purge& purge, Oid table, BlockNumber from, BlockNumber until) {
    purge.records = open_records_at_once(table, RowExclusiveLock);
    if (purge.records == nullptr) return true;
    const std::int64_t before = purge.result.purged;
    bool complete = true;
    if (!is_subscribed(purge.records) && !untrusted_trigger(purge.records)) {
        purge.rewrites = !OidIsValid(keeps_from_rewriting(purge.records));
        const BlockNumber blocks = RelationGetNumberOfBlocks(purge.records);
        complete = purge_blocks(purge, from, std::min(until, blocks));
        if (complete && until > blocks)  // what VACUUM has cut off is in order
            (void)note(purge, record_block(table, blocks), record_block(table, MaxBlockNumber),
                       nullptr);
    }
    if (purge.result.purged > before) lock_for_transaction(table, RowExclusiveLock);
    table_close(purge.records, RowExclusiveLock);
    return complete;
}

// From the position through all tables and, at last, up to the position again: each block at most
// once. If the table of the position is gone or left out, the step begins at the next one.
void purge_tables(Purge& purge, const List* tables) {
    if (tables == NIL) return;
    const int count = list_length(tables);
    int table = 0;
    while (table < count &&
           record_block(list_nth_oid(tables, table), MaxBlockNumber) < purge.position)
        ++table;
    if (table == count || first_block(tables, table) > purge.position)
        purge.position = first_block(tables, table);
    const RecordBlock start = purge.position;
    for (int i = 0; i <= count && !purge.is_full(); ++i, ++table) {
        if (table == count) table = 0;
        const bool last = i == count;
        const BlockNumber from = i == 0 ? number_of(start) : 0;
        const BlockNumber until = last ? number_of(start) : MaxBlockNumber;
        if (last && until == 0) return;
        if (!purge_table(purge, list_nth_oid(tables, table), from, until)) return;
        purge.position = last ? start : first_block(tables, table + 1);
    }
}

}  // namespace

PurgeResult purge_step(TimestampTz now, const PurgeLimits& limits) {
    lock_for_transaction(table_oid(Table::record), RowExclusiveLock);
    const List* tables = record_tables();
    Purge purge{};
    purge.now = now;
    purge.limits = limits;
    read_position(purge);
    const List* readable = measure(purge, tables);
    if (purge.result.subscribed) {
        table_close(purge.progress, NoLock);
        return purge.result;
    }
    learn_scopes(purge);
    purge.memory = AllocSetContextCreate(CurrentMemoryContext, "idem row", ALLOCSET_DEFAULT_SIZES);
    if (limits.time_limit_ms > 0)
        purge.deadline = steady_now() + std::int64_t{limits.time_limit_ms} * 1000;
    purge_tables(purge, readable);
    purge.result.next = purge.position;
    for_each_note(purge.notes, [tables](Note& note) {
        const Oid table = table_of(note.block);
        if (table != common_records && !list_member_oid(tables, table))  // it was dropped
            note.outdated = note.sqlstate != nullptr;
    });
    save_progress(purge);
    table_close(purge.progress, NoLock);
    CommandCounterIncrement();
    return purge.result;
}

// An unlogged table cannot be read on a standby.
std::optional<PassedOver> passed_over(Oid table) {
    if (RecoveryInProgress()) return std::nullopt;
    std::optional<PassedOver> first;
    Relation progress = open_table(Table::purge_progress, AccessShareLock);
    for_each_note(read_notes(progress), [&first, table = normalize_table(table)](const Note& note) {
        if (note.sqlstate == nullptr || table_of(note.block) != table) return;
        if (!first || note.block < first->block) first = {note.block, note.sqlstate};
    });
    table_close(progress, AccessShareLock);
    return first;
}

}  // namespace idem::pg
