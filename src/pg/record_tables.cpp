#include "pg/record_tables.hpp"

#include "pg/compat.hpp"
#include "pg/report.hpp"
#include "pg/scope.hpp"
#include "pg/table.hpp"

namespace idem::pg {
namespace {

using Fault = RecordTableFault;

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
    std::uint64_t as_of;  // how many invalidations; for a partition, whose parents count as well
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
    if (table == own || is_checked(relation)) return {};
    const std::uint64_t before = invalidations;
    Relation common = table_open(own, AccessShareLock);
    const Fault fault = fault_of(relation, common);
    table_close(common, AccessShareLock);
    // What has changed during the check may have been read before.
    if (!fault && invalidations == before) {
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
    if (!scope.records) return common_records;
    const Oid chosen = chosen_records();
    if (chosen == common_records)
        ereport(ERROR,
                (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                 errmsg("this transaction has chosen no record table"),
                 errdetail("The records of scope \"%s\" are in other tables than idem.record.",
                           scope.name),
                 errhint("Call idem.use_records() with the table first, in the same "
                         "transaction.")));
    return chosen;
}

void check_place(std::int32_t scope, Oid table) {
    const auto elsewhere = records_after_change(scope);
    if (elsewhere && *elsewhere != (table != common_records))
        report::serialization_failure(
            "The scope's records were put elsewhere while the call was waiting.");
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

namespace {

// A table that was checked may have changed since: it is checked again once it is locked.
Fault fault_before_lock(Oid table) {
    const bool known = table == table_oid(Table::record) || place_of(table).table == table;
    return known && OidIsValid(table) ? Fault{} : outward_fault(table);
}

// A remedy is a sentence or a statement. The one for another owner would give a table away.
const char* hint_of(const Fault& fault) {
    if (fault.kind == Fault::owner)
        return "If idem.create_record_table() has created the table, give it back to the owner of "
               "idem.record with ALTER TABLE ... OWNER TO. Otherwise choose another table.";
    const bool is_sentence = fault.remedy[strlen(fault.remedy) - 1] == '.';
    return is_sentence ? fault.remedy : psprintf("As a superuser, execute %s.", fault.remedy);
}

[[noreturn]] void refuse(Oid table, const Fault& fault) {
    const bool gone = fault.kind == Fault::gone;
    const bool privilege = fault.kind == Fault::owner || fault.kind == Fault::privileges;
    const char* name = gone ? nullptr : qualified_name(table);
    ereport(ERROR,
            (errcode(gone        ? ERRCODE_UNDEFINED_TABLE
                     : privilege ? ERRCODE_INSUFFICIENT_PRIVILEGE
                                 : ERRCODE_WRONG_OBJECT_TYPE),
             gone ? errmsg("record table does not exist")
             : fault.kind == Fault::owner
                 ? errmsg("record table \"%s\" has another owner than idem.record", name)
             : privilege ? errmsg("roles other than its owner may change record table \"%s\"", name)
                         : errmsg("\"%s\" is not a record table", name),
             errdetail("%s", fault.detail), errhint("%s", hint_of(fault))));
}

}  // namespace

void require_record_table(Oid table) {
    if (const Fault fault = fault_before_lock(table)) refuse(table, fault);
}

void require_record_table(Oid table, Relation relation) {
    if (const Fault fault = relation == nullptr ? gone(table) : check(relation))
        refuse(table, fault);
}

bool is_marked_table(Oid table) {
    // An index of a marked column has a column of the type, too.
    if (get_rel_relkind(table) != RELKIND_RELATION) return false;
    const Fault fault = fault_before_lock(table);
    return !fault || (fault.kind != Fault::gone && fault.kind != Fault::unmarked);
}

Relation try_open_records(Oid table, LOCKMODE mode) {
    if (fault_before_lock(table)) return nullptr;
    Relation relation = try_relation_open(table, mode);
    if (relation == nullptr || !check(relation)) return relation;
    relation_close(relation, mode);
    return nullptr;
}

// Taking the lock accepts invalidations, so a table that was dropped meanwhile is not opened.
Relation open_records_at_once(Oid table, LOCKMODE mode) {
    if (fault_before_lock(table)) return nullptr;
    if (!ConditionalLockRelationOid(table, mode)) return nullptr;
    Relation relation = try_open_records(table, NoLock);
    if (relation == nullptr) UnlockRelationOid(table, mode);
    return relation;
}

std::optional<RecordTableFault> fault_of_record_table(Oid table) {
    if (!SearchSysCacheExists1(RELOID, ObjectIdGetDatum(table))) return std::nullopt;
    Relation relation = try_open_marked(table);
    if (relation == nullptr) return std::nullopt;
    const Fault fault = check(relation);
    relation_close(relation, AccessShareLock);
    return fault;
}

Relation try_open_marked(Oid table) {
    Relation relation = try_relation_open(table, AccessShareLock);
    if (relation == nullptr || (relation->rd_rel->relkind == RELKIND_RELATION &&
                                relation->rd_rel->relpersistence != RELPERSISTENCE_TEMP))
        return relation;
    relation_close(relation, AccessShareLock);
    return nullptr;
}

RecordBlock record_block(Oid table, BlockNumber block) {
    return RecordBlock{as_given(table)} << 32 | block;
}

List* record_tables() {
    AcceptInvalidationMessages();
    if (known_since != invalidations) {
        const std::uint64_t before = invalidations;
        const Oid type = digest_type();
        List* tables = OidIsValid(type) ? relations_with(type) : NIL;
        list_sort(tables, list_oid_cmp);
        list_free(std::exchange(known_tables, NIL));
        const MemoryContext caller = MemoryContextSwitchTo(CacheMemoryContext);
        known_tables = list_copy(tables);
        MemoryContextSwitchTo(caller);
        known_since = before;  // a change meanwhile counts for the next call
    }
    return lcons_oid(table_oid(Table::record), list_copy(known_tables));
}

}  // namespace idem::pg
