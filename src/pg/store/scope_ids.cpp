#include "pg/store/scope_ids.hpp"

#include "pg/server/owner.hpp"
#include "pg/store/record.hpp"
#include "pg/store/scope.hpp"
#include "pg/store/watermark.hpp"

extern "C" {
#include "access/visibilitymap.h"
#include "commands/sequence.h"
}

namespace idem::pg {
namespace {

enum DroppedColumn { column_id, column_dropped, dropped_columns };
static_assert(dropped_columns == dropped_scope_columns);

std::int32_t id_of_dropped(TupleTableSlot* slot) {
    bool null;
    return DatumGetInt32(slot_getattr(slot, column_id + 1, &null));
}

// Rows in any state count: a row that was deleted, or is not committed yet, has used its id too.
std::int64_t highest_id(Table which, std::int32_t (*id_of)(TupleTableSlot*)) {
    std::int64_t highest = 0;
    scan_table(which, SnapshotAny, [&](TupleTableSlot* slot) {
        highest = std::max<std::int64_t>(highest, id_of(slot));
    });
    return highest;
}

struct SequenceState {
    std::int64_t last;  // the highest id that the sequence has given, 0 before the first
    bool called;        // it has given one since this database was created or restored
};

// The sequence is read as a table, because its SQL functions check the caller's privileges.
SequenceState read_sequence() {
    SequenceState sequence{0, false};
    scan_table(Table::scope_id, SnapshotAny, [&](TupleTableSlot* slot) {
        bool null;
        sequence.called = DatumGetBool(slot_getattr(slot, SEQ_COL_CALLED, &null));
        sequence.last = DatumGetInt64(slot_getattr(slot, SEQ_COL_LASTVAL, &null));
        if (!sequence.called) --sequence.last;
    });
    return sequence;
}

// setval() checks privileges on the sequence, which a role that may create scopes does not have.
void set_last_id(std::int64_t id) {
    Assert(id >= 1 && id <= PG_INT32_MAX);
    Relation sequence = open_table(Table::scope_id, AccessShareLock);
    AsOwner owner(sequence);
    (void)DirectFunctionCall2(setval_oid, ObjectIdGetDatum(RelationGetRelid(sequence)),
                              Int64GetDatum(id));
    owner.end();
    table_close(sequence, AccessShareLock);
}

// The column of a table that is marked as a record table; InvalidAttrNumber if it has none like it.
AttrNumber find_column(Relation table, const char* name, Oid type) {
    const Oid relation = RelationGetRelid(table);
    const AttrNumber column = get_attnum(relation, name);
    if (column > 0 && get_atttype(relation, column) == type) return column;
    return InvalidAttrNumber;
}

// The value of the column; without one, or without the column, what stands for it.
Datum slot_value(TupleTableSlot* slot, AttrNumber column, Datum otherwise) {
    if (column == InvalidAttrNumber) return otherwise;
    bool null;
    const Datum value = slot_getattr(slot, column, &null);
    return null ? otherwise : value;
}

std::int32_t id_in(TupleTableSlot* slot, AttrNumber column) {
    return DatumGetInt32(slot_value(slot, column, Int32GetDatum(0)));
}

// A search of all record tables that reads them twice: before its caller takes a lock that stops
// others, and then, under it, only the blocks that may have changed since. VACUUM marks no block as
// visible to all that has a row which the held snapshot does not see. A table whose file was not
// read before is read as a whole, as is one that is no heap: no other access method has such a map.
// Tables in different tablespaces may have files of one number.
struct Search {
    Snapshot held;
    List* tables;
    List* files;
};

template <class Visit>
void read_on(Search& search, Relation table, Snapshot snapshot, Visit visit) {
    const Oid file = table->rd_rel->relfilenode;
    const bool is_read = table->rd_rel->relam == HEAP_TABLE_AM_OID &&
                         list_member_oid(search.tables, RelationGetRelid(table)) &&
                         list_member_oid(search.files, file);
    if (!is_read) {
        search.tables = lappend_oid(search.tables, RelationGetRelid(table));
        search.files = lappend_oid(search.files, file);
        return scan_rows(table, snapshot, visit);
    }
    Buffer map = InvalidBuffer;
    for (BlockNumber block = 0; block < RelationGetNumberOfBlocks(table); ++block)
        if (!VM_ALL_VISIBLE(table, block, &map)) scan_blocks(table, snapshot, block, 1, visit);
    if (BufferIsValid(map)) ReleaseBuffer(map);
}

enum class Common : bool { passed_over, counted };  // idem.record

// In any state, as highest_id().
std::int64_t highest_id_in_records(Search& search, Common common) {
    std::int64_t highest = 0;
    for_each_marked_table([&](Relation table) {
        const AttrNumber column = find_column(table, "scope", INT4OID);
        if (column == InvalidAttrNumber) return;
        if (common == Common::passed_over && RelationGetRelid(table) == table_oid(Table::record))
            return;
        read_on(search, table, SnapshotAny, [&](TupleTableSlot* slot) {
            highest = std::max<std::int64_t>(highest, id_in(slot, column));
        });
    });
    return highest;
}

Keys count_keys(Search& search, std::optional<std::int32_t> scope, LOCKMODE lock) {
    Keys keys;
    const TimestampTz now = GetCurrentTimestamp();
    for_each_marked_table([&](Relation table) {
        const AttrNumber ids = find_column(table, "scope", INT4OID);
        const AttrNumber expires = find_column(table, "expires", TIMESTAMPTZOID);
        if (ids == InvalidAttrNumber) return;
        if (lock != NoLock) lock_for_transaction(RelationGetRelid(table), lock);
        read_on(
            search, table, lock == NoLock ? search.held : SnapshotSelf, [&](TupleTableSlot* slot) {
                const TimestampTz expiry =
                    DatumGetTimestampTz(slot_value(slot, expires, TimestampTzGetDatum(DT_NOEND)));
                if ((scope && id_in(slot, ids) != *scope) || expiry <= now) return;
                keys.until = std::max(keys.until, expiry);
                ++keys.records;
            });
    });
    Relation watermarks = open_table(Table::watermark, AccessShareLock);
    if (lock != NoLock) lock_for_transaction(RelationGetRelid(watermarks), lock);
    read_on(search, watermarks, lock == NoLock ? search.held : SnapshotSelf,
            [&](TupleTableSlot* slot) {
                if (!scope || watermark_scope(slot) == *scope) ++keys.watermarks;
            });
    table_close(watermarks, AccessShareLock);
    return keys;
}

bool has_rows(Table which, Snapshot snapshot) {
    bool found = false;
    scan_table(which, snapshot, [&](TupleTableSlot*) {
        found = true;
        return false;  // one row is enough
    });
    return found;
}

// After a restore that has lost them: a new scope would have another id, and no call would find
// the records.
void refuse_if_scopes_are_lost(Snapshot snapshot) {
    if (has_rows(Table::scope, snapshot) || has_rows(Table::dropped_scope, snapshot) ||
        !has_rows(Table::record, snapshot))
        return;
    ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                    errmsg("the scopes of the records in this database are missing"),
                    errdetail("Table idem.record has rows, and table idem.scope has none. Under a "
                              "new scope, the operations would be executed again."),
                    errhint("Restore the rows of idem.scope from the dump that the records came "
                            "from. If no retry can come any more, delete the rows of "
                            "idem.record.")));
}

}  // namespace

// Claims of all scopes wait for the lock.
Keys keys_of(std::optional<std::int32_t> scope) {
    Search search{RegisterSnapshot(GetLatestSnapshot()), NIL, NIL};
    Keys keys = count_keys(search, scope, NoLock);
    if (!keys.any()) keys = count_keys(search, scope, ShareRowExclusiveLock);
    UnregisterSnapshot(search.held);
    return keys;
}

std::int32_t lock_next_scope_id() {
    Search search{RegisterSnapshot(GetLatestSnapshot()), NIL, NIL};
    std::int64_t highest = highest_id_in_records(search, Common::passed_over);
    lock_changes(Table::scope);
    refuse_if_scopes_are_lost(search.held);
    const SequenceState sequence = read_sequence();
    const std::int64_t noted = std::max(highest_id(Table::scope, scope_row::id_of),
                                        highest_id(Table::dropped_scope, id_of_dropped));
    const bool is_behind = !sequence.called || sequence.last < noted;
    const Common common = is_behind ? Common::counted : Common::passed_over;
    highest = std::max({highest, sequence.last, noted, highest_id_in_records(search, common)});
    if (is_behind) highest = std::max(highest, highest_id(Table::watermark, watermark_scope));
    UnregisterSnapshot(search.held);
    const std::int64_t id = highest + 1;
    if (id > PG_INT32_MAX)
        ereport(
            ERROR,
            (errcode(ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED), errmsg("scope ids are used up"),
             errdetail("The id of a new scope must be greater than every id in idem.scope, "
                       "idem.dropped_scope, idem.record and idem.watermark, greater than the "
                       "last value of sequence idem.scope_id, and at most %d.",
                       PG_INT32_MAX),
             errhint("Look for rows with an id that no scope has had, and delete them. If the "
                     "sequence was set too high, set it back with ALTER SEQUENCE.")));
    set_last_id(id);
    return static_cast<std::int32_t>(id);
}

// The id may be noted already, if a superuser has restored a dropped scope.
void note_dropped_scope(std::int32_t id) {
    if (list_member_int(dropped_scopes(), id)) return;
    Relation relation = open_table(Table::dropped_scope, RowExclusiveLock);
    Row<dropped_columns> row;
    row.set_int(column_id, id);
    row.set_time(column_dropped, GetCurrentTransactionStartTimestamp());
    insert_row(relation, row.values(), row.nulls());
    table_close(relation, NoLock);
}

List* dropped_scopes() {
    List* ids = NIL;
    scan_table(Table::dropped_scope, SnapshotSelf,
               [&](TupleTableSlot* slot) { ids = lappend_int(ids, id_of_dropped(slot)); });
    return ids;
}

}  // namespace idem::pg
