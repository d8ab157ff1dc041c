#include "pg/scope_admin.hpp"

#include "pg/report.hpp"
#include "pg/scope_ids.hpp"
#include "pg/scope_row.hpp"

namespace idem::pg {
namespace {

using namespace scope_row;
using ScopeRow = Row<columns>;

void set_limit(ScopeRow& row, Column which, std::optional<std::int32_t> limit) {
    if (limit == no_limit) return row.clear(which);
    row.set_int(which, limit);
}

void set_rules(ScopeRow& row, const ScopeRules& rules) {
    row.set_pointer(column_ttl, rules.ttl);
    row.set_pointer(column_lease, rules.lease);
    row.set_pointer(column_wait, rules.wait);
    row.set_bool(column_request_required, rules.request_required);
    row.set_pointer(column_request_exclude, rules.request_exclude);
    row.set_bool(column_tenant_required, rules.tenant_required);
    row.set_bool(column_reject_stale_keys, rules.reject_stale_keys);
    set_limit(row, column_max_attempts, rules.max_attempts);
    set_limit(row, column_claims_per_minute, rules.claims_per_minute);
    if (rules.weak_keys) row.set_text(column_weak_keys, *rules.weak_keys);
    row.set_bool(column_store_response, rules.store_response);
    row.set_pointer(column_response_exclude, rules.response_exclude);
    row.set_pointer(column_transient_sqlstates, rules.transient_sqlstates);
    if (rules.owner) row.set(column_owner, ObjectIdGetDatum(*rules.owner));
}

Relation open_scopes() {
    return open_table(Table::scope, ShareRowExclusiveLock);
}

void announce_change(Relation relation) {
    CacheInvalidateRelcache(relation);
    table_close(relation, NoLock);
    CommandCounterIncrement();
}

// The scope's row as it is: where it lies, and its columns.
struct Existing {
    ItemPointerData tid;
    ScopeRow row;
};

Existing existing_scope(Relation relation, std::int32_t id) {
    HeapTuple tuple = nullptr;
    if (!scan_for(WithId{id}, [&](TupleTableSlot* slot) { tuple = ExecCopySlotHeapTuple(slot); }))
        elog(ERROR, "scope %d is gone although its table is locked", id);
    Existing existing{tuple->t_self, {}};
    const TupleDesc table = RelationGetDescr(relation);
    for (int i = 0; i < columns && has_column(table, i); ++i) {
        bool null;
        const Datum value = heap_getattr(tuple, i + 1, table, &null);
        if (!null) existing.row.set(i, value);
    }
    return existing;
}

void check_changed(TM_Result result) {
    if (result != TM_Ok) elog(ERROR, "unexpected result %d of changing a scope", result);
}

}  // namespace

void lock_scopes() {
    table_close(open_scopes(), NoLock);
}

void insert_scope(std::string_view name, const ScopeRules& rules) {
    Relation relation = open_scopes();
    if (scan_for(WithName{name}, [](TupleTableSlot*) {})) report::scope_exists(name);
    ScopeRow row;
    row.set_int(column_id, next_scope_id());
    row.set_text(column_name, name);
    set_rules(row, rules);
    // Nothing but this checks it: the row goes past the table's constraints.
    Assert(!has_column(RelationGetDescr(relation), column_transient_sqlstates) ||
           rules.transient_sqlstates != nullptr);
    TupleTableSlot* slot = new_row(relation, row.values(), row.nulls());
    insert_row(relation, slot);
    ExecDropSingleTupleTableSlot(slot);
    announce_change(relation);
}

void update_scope(std::int32_t id, const ScopeRules& rules) {
    Relation relation = open_scopes();
    Existing scope = existing_scope(relation, id);
    set_rules(scope.row, rules);
    TupleTableSlot* slot = new_row(relation, scope.row.values(), scope.row.nulls());
    check_changed(update_row(relation, scope.tid, slot, compat::Waiting::yes));
    ExecDropSingleTupleTableSlot(slot);
    announce_change(relation);
}

void delete_scope(std::int32_t id) {
    Relation relation = open_scopes();
    Existing scope = existing_scope(relation, id);
    check_changed(compat::delete_row(relation, &scope.tid, compat::Waiting::yes));
    note_dropped_scope(id);
    announce_change(relation);
}

}  // namespace idem::pg
