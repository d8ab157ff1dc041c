#include "pg/scope_ids.hpp"

#include "pg/compat.hpp"
#include "pg/record.hpp"
#include "pg/scope.hpp"
#include "pg/watermark.hpp"

namespace idem::pg {
namespace {

enum DroppedColumn { column_id, column_dropped, dropped_columns };

std::int32_t id_of_dropped(TupleTableSlot* slot) {
    bool null;
    return DatumGetInt32(slot_getattr(slot, column_id + 1, &null));
}

std::int32_t id_of_scope(TupleTableSlot* slot) {
    return DatumGetInt32(*scope_row::column(slot, scope_row::column_id));
}

// Rows in any state count: a row that was deleted, or is not committed yet, has used its id too.
std::int64_t highest_id(Table which, std::int32_t (*id_of)(TupleTableSlot*)) {
    std::int64_t highest = 0;
    scan_table(which, SnapshotAny, [&](TupleTableSlot* slot) {
        highest = std::max<std::int64_t>(highest, id_of(slot));
    });
    return highest;
}

std::int64_t highest_known_id() {
    return std::max(highest_id(Table::scope, id_of_scope),
                    highest_id(Table::dropped_scope, id_of_dropped));
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

// setval() checks privileges on the sequence, which a role that may create scopes does not have, so
// it runs as the sequence's owner. An error restores the user, as abort does for every error.
void set_last_id(std::int64_t id) {
    Assert(id >= 1 && id <= PG_INT32_MAX);
    Relation sequence = open_table(Table::scope_id, AccessShareLock);
    Oid user;
    int context;
    GetUserIdAndSecContext(&user, &context);
    SetUserIdAndSecContext(sequence->rd_rel->relowner, context | SECURITY_LOCAL_USERID_CHANGE);
    (void)DirectFunctionCall2(setval_oid, ObjectIdGetDatum(RelationGetRelid(sequence)),
                              Int64GetDatum(id));
    SetUserIdAndSecContext(user, context);
    table_close(sequence, AccessShareLock);
}

void check_deleted(TM_Result result) {
    if (result != TM_Ok) elog(ERROR, "unexpected result %d of deleting a dropped scope", result);
}

void keep_from_writing(Table table) {
    table_close(open_table(table, ShareRowExclusiveLock), NoLock);
}

// The column of a table that is marked as a record table; InvalidAttrNumber if it has none like it.
AttrNumber column_of(Relation table, const char* name, Oid type) {
    const Oid relation = RelationGetRelid(table);
    const AttrNumber column = get_attnum(relation, name);
    if (column > 0 && get_atttype(relation, column) == type) return column;
    return InvalidAttrNumber;
}

std::int32_t id_in(TupleTableSlot* slot, AttrNumber column) {
    bool null;
    const Datum id = slot_getattr(slot, column, &null);
    return null ? 0 : DatumGetInt32(id);
}

// Without such a column the record never expires.
TimestampTz expiry_in(TupleTableSlot* slot, AttrNumber column) {
    if (column == InvalidAttrNumber) return DT_NOEND;
    bool null;
    const Datum expiry = slot_getattr(slot, column, &null);
    return null ? DT_NOEND : DatumGetTimestampTz(expiry);
}

// In any state, as highest_id(). A record table may have come from another database, with ids that
// nothing else here tells; idem.record only where the sequence may be behind it.
std::int64_t highest_id_in_records(bool common_too) {
    std::int64_t highest = 0;
    for_each_marked_table([&](Relation table) {
        const AttrNumber column = column_of(table, "scope", INT4OID);
        if (column == InvalidAttrNumber) return;
        if (!common_too && as_given(RelationGetRelid(table)) == common_records) return;
        visit_rows(table, compat::begin_table_scan(table, SnapshotAny), [&](TupleTableSlot* slot) {
            highest = std::max<std::int64_t>(highest, id_in(slot, column));
        });
    });
    return highest;
}

}  // namespace

bool is_dropped_scope(std::int32_t id) {
    bool noted = false;
    scan_table(Table::dropped_scope, SnapshotSelf,
               [&](TupleTableSlot* slot) { noted |= id_of_dropped(slot) == id; });
    return noted;
}

void unnote_dropped_scope(std::int32_t id) {
    Relation relation = open_table(Table::dropped_scope, RowExclusiveLock);
    scan_committed(Table::dropped_scope, [&](TupleTableSlot* slot) {
        if (id_of_dropped(slot) == id)
            check_deleted(compat::delete_row(relation, &slot->tts_tid, compat::Waiting::yes));
    });
    table_close(relation, NoLock);
    CommandCounterIncrement();
}

void give_scope_ids(std::int32_t last) {
    if (last > read_sequence().last) set_last_id(last);
}

// The lock on each table is kept until the transaction ends.
Keys keys_of(std::optional<std::int32_t> scope) {
    Keys keys;
    const TimestampTz now = GetCurrentTimestamp();
    for_each_marked_table([&](Relation table) {
        const AttrNumber ids = column_of(table, "scope", INT4OID);
        const AttrNumber expires = column_of(table, "expires", TIMESTAMPTZOID);
        if (ids == InvalidAttrNumber) return;
        LockRelationOid(RelationGetRelid(table), ShareRowExclusiveLock);
        scan_committed_rows(table, [&](TupleTableSlot* slot) {
            const TimestampTz expiry = expiry_in(slot, expires);
            if ((scope && id_in(slot, ids) != *scope) || expiry <= now) return;
            keys.until = std::max(keys.until, expiry);
            ++keys.records;
        });
    });
    keep_from_writing(Table::watermark);
    scan_committed(Table::watermark, [&](TupleTableSlot* slot) {
        if (!scope || watermark_scope(slot) == *scope) ++keys.watermarks;
    });
    return keys;
}

std::int32_t next_scope_id() {
    const SequenceState sequence = read_sequence();
    std::int64_t highest = highest_known_id();
    const bool sequence_is_right = sequence.called && sequence.last >= highest;
    highest = std::max(highest, highest_id_in_records(!sequence_is_right));
    if (!sequence_is_right)
        highest = std::max(highest, highest_id(Table::watermark, watermark_scope));
    const std::int64_t id = std::max(sequence.last, highest) + 1;
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
    Assert(id > highest && id > sequence.last);
    set_last_id(id);
    return static_cast<std::int32_t>(id);
}

// The id may be noted already, if a superuser has restored a dropped scope.
void note_dropped_scope(std::int32_t id) {
    if (is_dropped_scope(id)) return;
    Relation relation = open_table(Table::dropped_scope, RowExclusiveLock);
    Row<dropped_columns> row;
    row.set_int(column_id, id);
    row.set_time(column_dropped, GetCurrentTransactionStartTimestamp());
    TupleTableSlot* slot = new_row(relation, row.values(), row.nulls());
    insert_row(relation, slot);
    ExecDropSingleTupleTableSlot(slot);
    table_close(relation, NoLock);
}

List* dropped_scopes() {
    List* ids = NIL;
    scan_table(Table::dropped_scope, SnapshotSelf,
               [&](TupleTableSlot* slot) { ids = lappend_int(ids, id_of_dropped(slot)); });
    return ids;
}

}  // namespace idem::pg
