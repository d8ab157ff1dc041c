// idem.other_records(): the records in all tables but idem.record, for the views.
//
// It is executed with the privileges of the role that queries a view, so every role may call it. It
// returns only what the views show to that role: records of scopes whose owner's privileges the
// role has, without answers, and nothing that tokens and digests are made of.
#include "api/arguments.hpp"
#include "pg/boundary.hpp"
#include "pg/hash_table.hpp"
#include "pg/record.hpp"
#include "pg/report.hpp"
#include "pg/scope.hpp"

namespace idem::api {
namespace {

enum OtherArgument { arg_unfinished_only };

enum OtherColumn {
    other_scope,
    other_tenant,
    other_key,
    other_state,
    other_attempt,
    other_extra_attempts,
    other_status,
    other_created,
    other_expires,
    other_lease_end,
    other_released,
    other_recovery_point,
    other_last_error,
    other_redacted,
    other_has_answer,
    other_answer_bytes,
    other_records,
    other_columns
};

// The scopes whose owner's privileges the caller has.
struct VisibleScope {
    std::int32_t id;
};
using VisibleScopes = pg::HashTable<std::int32_t, VisibleScope>;

// One call. Scopes and records are those that the query sees, as if the views read these tables
// themselves; so this takes no snapshot of its own, which a parallel query would not allow.
struct OtherRecords {
    FunctionCallInfo fcinfo;
    Snapshot snapshot;
    TimestampTz now;
    VisibleScopes scopes;
    MemoryContext memory;  // of one row
};
static_assert(std::is_trivially_destructible_v<OtherRecords>);

VisibleScopes visible_scopes(Snapshot snapshot) {
    namespace scope_row = pg::scope_row;
    VisibleScopes scopes;
    scopes.create("idem visible scopes", 64, CurrentMemoryContext);
    pg::scan_table(pg::Table::scope, snapshot, [&](TupleTableSlot* slot) {
        const Datum owner = *scope_row::column(slot, scope_row::column_owner);
        if (!has_privs_of_role(GetUserId(), DatumGetObjectId(owner))) return;
        bool found;
        const Datum id = *scope_row::column(slot, scope_row::column_id);
        (void)scopes.enter(DatumGetInt32(id), found);
    });
    return scopes;
}

void add_row(FunctionCallInfo fcinfo, Oid table, const pg::RecordSummary& record) {
    const pg::RecordHead& head = record.head;
    pg::Row<other_columns> row;
    row.set_int(other_scope, head.scope_id);
    row.set_text(other_tenant, head.tenant);
    row.set_text(other_key, head.key.view());
    row.set(other_state, CharGetDatum(static_cast<char>(head.state)));
    row.set_int(other_attempt, head.attempt);
    row.set_int(other_extra_attempts, head.extra_attempts);
    row.set_int(other_status, record.status);
    row.set_time(other_created, head.created);
    row.set_time(other_expires, head.expires);
    row.set_time(other_lease_end, head.lease_end);
    row.set_bool(other_released, record.is_released);
    row.set_pointer(other_recovery_point, record.recovery_point);
    row.set_pointer(other_last_error, record.last_error);
    row.set_bool(other_redacted, record.redacted);
    row.set_bool(other_has_answer, record.has_answer);
    row.set_bigint(other_answer_bytes, head.answer_bytes);
    row.set(other_records, ObjectIdGetDatum(table));
    row.add_to_result_of(fcinfo);
}

void show_record(const OtherRecords& call, TupleTableSlot* slot) {
    if (call.scopes.find(pg::record_scope(slot)) == nullptr) return;
    if (pg::record_expires(slot) <= call.now) return;
    const MemoryContext before = MemoryContextSwitchTo(call.memory);
    add_row(call.fcinfo, slot->tts_tableOid, pg::record_summary(slot));
    MemoryContextSwitchTo(before);
    MemoryContextReset(call.memory);
}

void show_unfinished(const OtherRecords& call, Relation table) {
    pg::UnfinishedSearch search(table, call.snapshot);
    while (TupleTableSlot* slot = search.next_row()) show_record(call, slot);
    search.end();
}

void show_all(const OtherRecords& call, Relation table) {
    pg::visit_rows(table, pg::compat::begin_table_scan(table, call.snapshot),
                   [&call](TupleTableSlot* slot) { show_record(call, slot); });
}

void show_other_records(FunctionCallInfo fcinfo, bool unfinished_only) {
    List* tables = pg::record_tables();
    if (list_length(tables) == 1) return;
    Assert(ActiveSnapshotSet());
    const OtherRecords call{
        .fcinfo = fcinfo,
        .snapshot = GetActiveSnapshot(),
        .now = GetCurrentStatementStartTimestamp(),
        .scopes = visible_scopes(GetActiveSnapshot()),
        .memory = AllocSetContextCreate(CurrentMemoryContext, "idem row", ALLOCSET_DEFAULT_SIZES),
    };
    for (int i = 1; i < list_length(tables); ++i) {
        Relation table = pg::try_open_records(list_nth_oid(tables, i), AccessShareLock);
        if (table == nullptr) continue;
        if (unfinished_only)
            show_unfinished(call, table);
        else
            show_all(call, table);
        table_close(table, AccessShareLock);
    }
    MemoryContextDelete(call.memory);
}

}  // namespace

}  // namespace idem::api

IDEM_FUNCTION(idem_other_records) {
    using namespace idem;
    const auto unfinished_only = pg::bool_arg(fcinfo, api::arg_unfinished_only);
    if (!unfinished_only) pg::report::null_argument("unfinished_only");
    InitMaterializedSRF(fcinfo, 0);
    api::show_other_records(fcinfo, *unfinished_only);
    return Datum{0};
}
