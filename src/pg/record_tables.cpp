#include "pg/record_tables.hpp"

#include "pg/compat.hpp"
#include "pg/record.hpp"
#include "pg/report.hpp"
#include "pg/scope.hpp"
#include "pg/table.hpp"

namespace idem::pg {
namespace {

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

// Why a relation is not used as a record table.
struct Fault {
    enum { none, shape, owner, privileges, index } kind;
    const char* detail = nullptr;
    Oid relation = InvalidOid;  // the table, or a parent of the partition
    Oid writer = InvalidOid;    // the role that has the privileges; InvalidOid is PUBLIC
};

const char* role_name(Oid role) {
    return OidIsValid(role) ? psprintf("role \"%s\"", GetUserNameFromId(role, false)) : "PUBLIC";
}

constexpr AclMode changing = ACL_INSERT | ACL_UPDATE | ACL_DELETE | ACL_TRUNCATE;

// The grantee, other than the owner, that the list allows to change rows.
std::optional<Oid> writer_in(SysCacheIdentifier cache, HeapTuple tuple, AttrNumber column,
                             Oid owner) {
    bool null;
    const Datum value = SysCacheGetAttr(cache, tuple, column, &null);
    if (null) return std::nullopt;
    const Acl* acl = DatumGetAclP(value);
    for (int i = 0; i < ACL_NUM(acl); ++i) {
        const AclItem& item = ACL_DAT(acl)[i];
        if (item.ai_grantee != owner && (ACLITEM_GET_PRIVS(item) & changing) != 0)
            return item.ai_grantee;
    }
    return std::nullopt;
}

std::optional<Oid> writer_of_column(Oid relation, AttrNumber column, Oid owner) {
    HeapTuple tuple = SearchSysCache2(ATTNUM, ObjectIdGetDatum(relation), Int16GetDatum(column));
    if (!HeapTupleIsValid(tuple)) return std::nullopt;
    const auto writer = writer_in(ATTNUM, tuple, Anum_pg_attribute_attacl, owner);
    ReleaseSysCache(tuple);
    return writer;
}

const char* name_of(Oid relation) {
    return quote_qualified_identifier(get_namespace_name(get_rel_namespace(relation)),
                                      get_rel_name(relation));
}

// Who owns the relation, and who else may change it. Only the catalog is read: a partition's parent
// is not locked after the partition.
Fault privileges_fault(Oid relation, Oid owner) {
    HeapTuple tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relation));
    if (!HeapTupleIsValid(tuple)) return {Fault::none};
    const FormData_pg_class form = *reinterpret_cast<const FormData_pg_class*>(GETSTRUCT(tuple));
    auto writer = writer_in(RELOID, tuple, Anum_pg_class_relacl, owner);
    ReleaseSysCache(tuple);
    if (form.relowner != owner)
        return {Fault::owner,
                psprintf("Table %s is owned by %s, and idem.record by %s.", name_of(relation),
                         role_name(form.relowner), role_name(owner)),
                relation};
    for (AttrNumber i = 1; !writer && i <= form.relnatts; ++i)
        writer = writer_of_column(relation, i, owner);
    if (!writer) return {Fault::none};
    return {Fault::privileges,
            psprintf("Table %s may be changed by %s, which could write answers that idem then "
                     "returns.",
                     name_of(relation), role_name(*writer)),
            relation, *writer};
}

// Of a partition, its parents count as well: through them, its rows can be written.
Fault privileges_fault_of(Relation relation, Oid owner) {
    const Oid table = RelationGetRelid(relation);
    Fault fault = privileges_fault(table, owner);
    List* parents = relation->rd_rel->relispartition ? get_partition_ancestors(table) : NIL;
    for (int i = 0; fault.kind == Fault::none && i < list_length(parents); ++i)
        fault = privileges_fault(list_nth_oid(parents, i), owner);
    return fault;
}

// The type that marks record tables; InvalidOid before the update to 0.3.0.
Oid digest_type() {
    const Oid schema = own_schema();
    if (!OidIsValid(schema)) return InvalidOid;
    const Oid type = GetSysCacheOid2(TYPENAMENSP, Anum_pg_type_oid, CStringGetDatum("key_digest"),
                                     ObjectIdGetDatum(schema));
    const bool ours = OidIsValid(type) &&
                      getExtensionOfObject(TypeRelationId, type) == get_extension_oid("idem", true);
    return ours ? type : InvalidOid;
}

bool has_digest_index(Relation relation) {
    const Oid primary_key = compat::primary_key_of(relation);
    if (!OidIsValid(primary_key)) return false;
    Relation index = index_open(primary_key, AccessShareLock);
    const bool usable = is_digest_index_of(index, relation);
    index_close(index, AccessShareLock);
    return usable;
}

const char* kind_fault(Relation relation) {
    if (relation->rd_rel->relkind != RELKIND_RELATION) return "It is not an ordinary table.";
    if (relation->rd_rel->relpersistence != RELPERSISTENCE_PERMANENT)
        return "It is temporary or unlogged: a crash would empty it, and operations would be "
               "executed twice.";
    if (!relation->rd_rel->relispartition && has_superclass(RelationGetRelid(relation)))
        return "It inherits from another table, through which its rows can be changed.";
    return nullptr;
}

// The columns of idem.record must be there in the same order, and others only after them. Without
// the type that marks it, the table would be left out where all record tables are meant.
const char* column_fault(TupleDesc table, TupleDesc common) {
    const int first = has_tenant_column(table) ? 1 : 0;
    const int wanted_columns = std::min(record_columns, common->natts);
    if (table->natts < first + wanted_columns) return "It has fewer columns than idem.record.";
    for (int i = 0; i < wanted_columns; ++i) {
        const FormData_pg_attribute* wanted = TupleDescAttr(common, i);
        const FormData_pg_attribute* found = TupleDescAttr(table, first + i);
        if (found->attisdropped || strcmp(NameStr(found->attname), NameStr(wanted->attname)) != 0 ||
            getBaseType(found->atttypid) != wanted->atttypid)
            return psprintf("Its column %d is not the column \"%s\" of idem.record.", first + i + 1,
                            NameStr(wanted->attname));
    }
    if (TupleDescAttr(table, first)->atttypid != digest_type())
        return "Its column \"digest\" does not have the type idem.key_digest.";
    return nullptr;
}

Fault fault_of(Relation relation, Relation common) {
    if (const char* fault = kind_fault(relation)) return {Fault::shape, fault};
    if (const char* fault = column_fault(RelationGetDescr(relation), RelationGetDescr(common)))
        return {Fault::shape, fault};
    const Fault fault = privileges_fault_of(relation, common->rd_rel->relowner);
    if (fault.kind != Fault::none) return fault;
    if (!has_digest_index(relation))
        return {Fault::index,
                "It has no primary key on the digest, and the tenant if it has a "
                "column for that, checked at once."};
    return {Fault::none};
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

const char* quoted_role(Oid role) {
    return OidIsValid(role) ? quote_identifier(GetUserNameFromId(role, false)) : "PUBLIC";
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

// The first column of the type that marks record tables; NULL if there is none any more.
const char* marked_column(Relation relation) {
    const Oid type = digest_type();
    const TupleDesc columns = RelationGetDescr(relation);
    for (int i = 0; i < columns->natts; ++i) {
        const FormData_pg_attribute* column = TupleDescAttr(columns, i);
        if (!column->attisdropped && column->atttypid == type)
            return quote_identifier(NameStr(column->attname));
    }
    return nullptr;
}

const char* add_primary_key(Relation relation, const char* name) {
    const Oid present = compat::primary_key_of(relation);
    const TupleDesc columns = RelationGetDescr(relation);
    return psprintf(
        "ALTER TABLE %s %sADD PRIMARY KEY (digest%s)", name,
        OidIsValid(present)
            ? psprintf("DROP CONSTRAINT %s, ", quote_identifier(get_rel_name(present)))
            : "",
        has_tenant_column(columns)
            ? psprintf(", %s", quote_identifier(NameStr(TupleDescAttr(columns, 0)->attname)))
            : "");
}

const char* remedy_for(Relation relation, const Fault& fault) {
    const char* name = name_of(RelationGetRelid(relation));
    switch (fault.kind) {
        case Fault::owner: {
            Relation common = table_open(table_oid(Table::record), AccessShareLock);
            const Oid owner = common->rd_rel->relowner;
            table_close(common, AccessShareLock);
            return psprintf("ALTER TABLE %s OWNER TO %s", name_of(fault.relation),
                            quoted_role(owner));
        }
        case Fault::privileges:
            return psprintf("REVOKE INSERT, UPDATE, DELETE, TRUNCATE ON %s FROM %s",
                            name_of(fault.relation), quoted_role(fault.writer));
        case Fault::index:
            return add_primary_key(relation, name);
        default:
            break;
    }
    if (relation->rd_rel->relpersistence == RELPERSISTENCE_UNLOGGED)
        return psprintf("ALTER TABLE %s SET LOGGED", name);
    const char* column = marked_column(relation);
    return psprintf(
        "Give it the columns of idem.record in their order; or, if idem is not to use "
        "it: ALTER TABLE %s ALTER COLUMN %s TYPE uuid",
        name, column == nullptr ? "digest" : column);
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
    const char* name = name_of(RelationGetRelid(relation));
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
OpenAttempt open_records_at_once(Oid table, LOCKMODE mode) {
    if (!ConditionalLockRelationOid(table, mode)) return {nullptr, true};
    Relation relation = try_open_records(table, NoLock);
    if (relation == nullptr) UnlockRelationOid(table, mode);
    return {relation, false};
}

std::optional<RecordTableFault> fault_of_record_table(Oid table) {
    if (!SearchSysCacheExists1(RELOID, ObjectIdGetDatum(table))) return std::nullopt;
    Relation relation = try_relation_open(table, AccessShareLock);
    if (relation == nullptr) return std::nullopt;
    std::optional<RecordTableFault> result;
    trivial<std::optional<RecordTableFault>>();
    if (is_candidate(relation)) {
        const Fault fault = check(relation);
        result = fault.kind == Fault::none
                     ? RecordTableFault{nullptr, nullptr}
                     : RecordTableFault{fault.detail, remedy_for(relation, fault)};
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

bool has_new_record_table(const List* known) {
    InvalidateCatalogSnapshot();
    const List* tables = marked_relations();
    for (int i = 0; i < list_length(tables); ++i)
        if (!list_member_oid(known, list_nth_oid(tables, i))) return true;
    return false;
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
