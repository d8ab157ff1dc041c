#include "pg/scope_ids.hpp"

#include "pg/record.hpp"
#include "pg/report.hpp"
#include "pg/scope.hpp"
#include "pg/watermark.hpp"

namespace idem::pg {
namespace {

enum DroppedColumn { column_id, column_dropped, dropped_columns };

// A table of its name may be there before it is the extension's: until 0.2.0 scopes could be
// administered by roles that may create tables in the schema.
bool notes_dropped_scopes() {
    const Oid table = find_table_oid(Table::dropped_scope);
    return OidIsValid(table) &&
           getExtensionOfObject(RelationRelationId, table) == get_extension_oid("idem", true);
}

// Calls visit(slot) for every row, in any state that the snapshot admits.
template <class Visit>
void scan_table(Table which, Snapshot snapshot, Visit visit) {
    Relation relation = open_table(which, AccessShareLock);
    TableScanDesc scan = compat::begin_table_scan(relation, snapshot);
    TupleTableSlot* slot = table_slot_create(relation, nullptr);
    while (table_scan_getnextslot(scan, ForwardScanDirection, slot)) {
        CHECK_FOR_INTERRUPTS();
        visit(slot);
    }
    ExecDropSingleTupleTableSlot(slot);
    table_endscan(scan);
    table_close(relation, AccessShareLock);
}

std::int32_t id_of_dropped(TupleTableSlot* slot) {
    bool null;
    return DatumGetInt32(slot_getattr(slot, column_id + 1, &null));
}

std::int32_t id_of_scope(TupleTableSlot* slot) {
    return DatumGetInt32(*scope_row::column(slot, scope_row::column_id));
}

// Rows in any state count: what is deleted, or not committed yet, has had its id all the same.
std::int64_t highest_id(Table which, std::int32_t (*id_of)(TupleTableSlot*)) {
    std::int64_t highest = 0;
    scan_table(which, SnapshotAny, [&](TupleTableSlot* slot) {
        highest = std::max<std::int64_t>(highest, id_of(slot));
    });
    return highest;
}

struct Given {
    std::int64_t last;  // the highest id that the sequence has given, 0 before the first
    bool here;          // it has given one since this database was made, restored or updated
};

// Read as the table that a sequence is: its SQL functions would ask for the caller's rights.
Given given_ids() {
    Given given{0, false};
    scan_table(Table::scope_id, SnapshotAny, [&](TupleTableSlot* slot) {
        bool null;
        given.here = DatumGetBool(slot_getattr(slot, SEQ_COL_CALLED, &null));
        given.last = DatumGetInt64(slot_getattr(slot, SEQ_COL_LASTVAL, &null));
        if (!given.here) --given.last;
    });
    return given;
}

// setval() asks for rights on the sequence, which the caller, who may create scopes, has not. An
// error restores the user as it restores everything.
void set_last_id(std::int64_t id) {
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

bool is_noted(std::int32_t id) {
    bool noted = false;
    scan_table(Table::dropped_scope, SnapshotSelf,
               [&](TupleTableSlot* slot) { noted |= id_of_dropped(slot) == id; });
    return noted;
}

}  // namespace

std::int32_t next_scope_id() {
    const Given given = given_ids();
    const bool noted = notes_dropped_scopes();
    std::int64_t highest = highest_id(Table::scope, id_of_scope);
    if (noted) highest = std::max(highest, highest_id(Table::dropped_scope, id_of_dropped));
    const bool sequence_is_right = noted && given.here && given.last >= highest;
    if (!sequence_is_right)
        highest = std::max({highest, highest_id(Table::record, record_scope),
                            highest_id(Table::watermark, watermark_scope)});
    const std::int64_t id = std::max(given.last, highest) + 1;
    if (id > PG_INT32_MAX) report::scope_ids_used_up();
    Assert(id > highest && id > given.last);
    set_last_id(id);
    return static_cast<std::int32_t>(id);
}

// It may be noted already, if the superuser has brought a scope back.
void note_dropped_scope(std::int32_t id) {
    if (!notes_dropped_scopes() || is_noted(id)) return;
    Relation relation = open_table(Table::dropped_scope, RowExclusiveLock);
    Row<dropped_columns> row;
    row.set_int(column_id, id);
    row.set_time(column_dropped, GetCurrentTransactionStartTimestamp());
    TupleTableSlot* slot = new_row(relation, row.values(), row.nulls());
    insert_row(relation, slot);
    ExecDropSingleTupleTableSlot(slot);
    table_close(relation, NoLock);
}

std::optional<List*> dropped_scopes() {
    if (!notes_dropped_scopes()) return std::nullopt;
    List* ids = NIL;
    scan_table(Table::dropped_scope, SnapshotSelf,
               [&](TupleTableSlot* slot) { ids = lappend_int(ids, id_of_dropped(slot)); });
    return ids;
}

bool seems_dropped(std::int32_t id) {
    if (id > given_ids().last) return false;
    bool any = false;
    const auto match = [&](TupleTableSlot* slot) {
        any = true;
        return scope_row::WithId{id}(slot);
    };
    return !scope_row::scan_for(match, [](TupleTableSlot*) {}) && any;
}

}  // namespace idem::pg
