#include "pg/record_tables.hpp"

#include "pg/compat.hpp"
#include "pg/record.hpp"
#include "pg/record_table_check.hpp"
#include "pg/report.hpp"
#include "pg/scope.hpp"
#include "pg/table.hpp"

namespace idem::pg {
namespace {

using record_table::digest_type;
using record_table::Fault;
using record_table::fault_of;

// ---- The transaction's choice -------------------------------------------------------------------

// The choices of the transaction and of its subtransactions that are open, the newest first.
struct Choice {
    Oid table;
    SubTransactionId made_in;
    Choice* older;
};
constinit Choice* newest_choice = nullptr;  // in TopTransactionContext

extern "C" {
static void forget_choices(XactEvent event, void*) {
    if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE)
        newest_choice = nullptr;
}

static void follow_savepoint(SubXactEvent event, SubTransactionId sub, SubTransactionId parent,
                             void*) {
    for (Choice** at = &newest_choice; *at != nullptr && (*at)->made_in == sub;) {
        if (event == SUBXACT_EVENT_ABORT_SUB) {
            *at = (*at)->older;
        } else {
            if (event == SUBXACT_EVENT_COMMIT_SUB) (*at)->made_in = parent;
            at = &(*at)->older;
        }
    }
}
}

// ---- What a record table must be ----------------------------------------------------------------

constinit std::uint64_t invalidations = 1;  // that the relation cache has reported, from 1

// The tables that were checked, each at the place that its OID gives it. Another table may take the
// place, which costs a check only.
struct Checked {
    Oid table;
    std::uint64_t
        as_of;  // of a partition, whose parents count as well: the number of invalidations
};
constinit std::array<Checked, 256> checked{};
constinit Oid checked_against = InvalidOid;  // idem.record, at the last check

Checked& place_of(Oid table) {
    return checked[table % checked.size()];
}

bool is_checked(Relation relation) {
    const Checked& place = place_of(RelationGetRelid(relation));
    return place.table == RelationGetRelid(relation) &&
           (!relation->rd_rel->relispartition || place.as_of == invalidations);
}

// What record_tables() has found, and after how many invalidations: a new table, or a new column,
// invalidates a relation.
constinit List* known_tables = NIL;  // in CacheMemoryContext
constinit std::uint64_t known_since = 0;

void forget_checked(Oid relation) {
    ++invalidations;
    if (!OidIsValid(relation) || relation == checked_against)
        checked.fill({});
    else if (place_of(relation).table == relation)
        place_of(relation) = {};
}

Fault check(Relation relation) {
    const Oid table = RelationGetRelid(relation);
    const Oid own = table_oid(Table::record);
    if (table == own || is_checked(relation)) return {Fault::none};
    const std::uint64_t before = invalidations;
    Relation common = table_open(own, AccessShareLock);
    const Fault fault = fault_of(relation, common);
    table_close(common, AccessShareLock);
    // What has changed during the check may have been read before.
    if (fault.kind == Fault::none && invalidations == before) {
        checked_against = own;
        place_of(table) = {table, before};
    }
    return fault;
}

// ---- All record tables --------------------------------------------------------------------------

// The relations with a column of the type.
List* relations_with(Oid type) {
    List* relations = NIL;
    ScanKeyData keys[2];
    ScanKeyInit(&keys[0], Anum_pg_depend_refclassid, BTEqualStrategyNumber, F_OIDEQ,
                ObjectIdGetDatum(TypeRelationId));
    ScanKeyInit(&keys[1], Anum_pg_depend_refobjid, BTEqualStrategyNumber, F_OIDEQ,
                ObjectIdGetDatum(type));
    Relation depend = table_open(DependRelationId, AccessShareLock);
    SysScanDesc scan =
        systable_beginscan(depend, DependReferenceIndexId, true, nullptr, lengthof(keys), keys);
    for (HeapTuple tuple; HeapTupleIsValid(tuple = systable_getnext(scan));) {
        const auto* dependency = reinterpret_cast<FormData_pg_depend*>(GETSTRUCT(tuple));
        if (dependency->classid == RelationRelationId && dependency->objsubid > 0)
            relations = list_append_unique_oid(relations, dependency->objid);
    }
    systable_endscan(scan);
    table_close(depend, AccessShareLock);
    return relations;
}

// In the order of record_tables().
List* marked_relations() {
    const Oid type = digest_type();
    List* tables = OidIsValid(type) ? relations_with(type) : NIL;
    list_sort(tables, list_oid_cmp);
    return tables;
}

const char* remedy_for(Relation relation, const Fault& fault) {
    Relation common = table_open(table_oid(Table::record), AccessShareLock);
    const char* remedy = record_table::remedy_for(relation, common, fault);
    table_close(common, AccessShareLock);
    return remedy;
}

bool is_candidate(Relation relation) {
    return relation->rd_rel->relkind == RELKIND_RELATION &&
           relation->rd_rel->relpersistence != RELPERSISTENCE_TEMP;
}

void add_tenant_context(void* table) {
    errcontext("tenant as column \"%s\" of the record table",
               NameStr(TupleDescAttr(static_cast<TupleDesc>(table), 0)->attname));
}

}  // namespace

void init_record_tables() {
    RegisterXactCallback(forget_choices, nullptr);
    RegisterSubXactCallback(follow_savepoint, nullptr);
    on_each_invalidation(forget_checked);
}

Oid as_given(Oid table) {
    return table == table_oid(Table::record) ? common_records : table;
}

Oid records_of(const Scope& scope) {
    return OidIsValid(scope.records) ? scope.records : chosen_records();
}

Oid chosen_records() {
    return newest_choice == nullptr ? common_records : newest_choice->table;
}

void choose_records(Oid table) {
    const SubTransactionId here = GetCurrentSubTransactionId();
    if (newest_choice != nullptr && newest_choice->made_in == here) {
        newest_choice->table = as_given(table);
        return;
    }
    auto* choice = static_cast<Choice*>(MemoryContextAlloc(TopTransactionContext, sizeof(Choice)));
    *choice = {as_given(table), here, newest_choice};
    newest_choice = choice;
}

bool is_record_table(Relation relation) {
    return check(relation).kind == Fault::none;
}

void require_record_table(Relation relation) {
    const Fault fault = check(relation);
    if (fault.kind == Fault::none || fault.kind == Fault::index) return;
    const char* name = qualified_name(RelationGetRelid(relation));
    switch (fault.kind) {
        case Fault::owner:
            report::record_table_of_another_role(name, fault.detail);
        case Fault::privileges:
            report::record_table_of_writers(name, fault.detail);
        default:
            report::not_a_record_table(name, fault.detail);
    }
}

Relation try_open_records(Oid table, LOCKMODE mode) {
    Relation relation = try_relation_open(table, mode);
    if (relation == nullptr || is_record_table(relation)) return relation;
    relation_close(relation, mode);
    return nullptr;
}

// Taking the lock accepts invalidations, so a table that was dropped meanwhile is not opened.
Relation open_records_at_once(Oid table, LOCKMODE mode) {
    if (!ConditionalLockRelationOid(table, mode)) return nullptr;
    Relation relation = try_open_records(table, NoLock);
    if (relation == nullptr) UnlockRelationOid(table, mode);
    return relation;
}

std::optional<RecordTableFault> fault_of_record_table(Oid table) {
    if (!SearchSysCacheExists1(RELOID, ObjectIdGetDatum(table))) return std::nullopt;
    Relation relation = try_relation_open(table, AccessShareLock);
    if (relation == nullptr) return std::nullopt;
    std::optional<RecordTableFault> result;
    trivial<std::optional<RecordTableFault>>();
    if (is_candidate(relation)) {
        const Fault fault = check(relation);
        const bool usable = fault.kind == Fault::none;
        result = {fault.detail, usable ? nullptr : remedy_for(relation, fault)};
    }
    relation_close(relation, AccessShareLock);
    return result;
}

RecordBlock record_block(Oid table, BlockNumber block) {
    return RecordBlock{as_given(table)} << 32 | block;
}

List* record_tables() {
    AcceptInvalidationMessages();
    if (known_since != invalidations) {
        const std::uint64_t before = invalidations;
        const List* tables = marked_relations();
        list_free(std::exchange(known_tables, NIL));
        const MemoryContext caller = MemoryContextSwitchTo(CacheMemoryContext);
        known_tables = list_copy(tables);
        MemoryContextSwitchTo(caller);
        known_since = before;  // a change meanwhile counts for the next call
    }
    return lcons_oid(table_oid(Table::record), list_copy(known_tables));
}

Datum tenant_value(TupleDesc table, std::string_view tenant) {
    Assert(has_tenant_column(table));
    const FormData_pg_attribute* column = TupleDescAttr(table, 0);
    Oid input;
    Oid parameter;
    getTypeInputInfo(column->atttypid, &input, &parameter);
    ErrorContextCallback context{error_context_stack, add_tenant_context, table};
    error_context_stack = &context;
    const Datum value = OidInputFunctionCall(input, pnstrdup(tenant.data(), tenant.size()),
                                             parameter, column->atttypmod);
    error_context_stack = context.previous;
    return value;
}

}  // namespace idem::pg
