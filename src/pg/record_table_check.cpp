#include "pg/record_table_check.hpp"

#include "pg/compat.hpp"
#include "pg/owner.hpp"
#include "pg/record.hpp"
#include "pg/table.hpp"

namespace idem::pg::record_table {

Oid digest_type() {
    const Oid schema = own_schema();
    if (!OidIsValid(schema)) return InvalidOid;
    const Oid type = GetSysCacheOid2(TYPENAMENSP, Anum_pg_type_oid, CStringGetDatum("key_digest"),
                                     ObjectIdGetDatum(schema));
    const bool ours = OidIsValid(type) &&
                      getExtensionOfObject(TypeRelationId, type) == get_extension_oid("idem", true);
    return ours ? type : InvalidOid;
}

namespace {

constexpr Fault no_fault{Fault::none};

const char* role_name(Oid role) {
    return OidIsValid(role) ? psprintf("role \"%s\"", GetUserNameFromId(role, false)) : "PUBLIC";
}

const char* quoted_role(Oid role) {
    return OidIsValid(role) ? quote_identifier(GetUserNameFromId(role, false)) : "PUBLIC";
}

std::optional<FormData_pg_class> class_of(Oid relation) {
    HeapTuple tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relation));
    if (!HeapTupleIsValid(tuple)) return std::nullopt;
    const FormData_pg_class form = *reinterpret_cast<const FormData_pg_class*>(GETSTRUCT(tuple));
    ReleaseSysCache(tuple);
    return form;
}

// ---- What any relation shows --------------------------------------------------------------------

// The first column of the type that marks record tables; NULL if there is none.
const char* marked_column(Oid table, AttrNumber columns) {
    const Oid type = digest_type();
    for (AttrNumber i = 1; OidIsValid(type) && i <= columns; ++i)
        if (get_atttype(table, i) == type) return get_attname(table, i, false);
    return nullptr;
}

Fault kind_fault(Oid table, const FormData_pg_class& form) {
    const char* name = qualified_name(table);
    if (form.relkind != RELKIND_RELATION)
        return {Fault::shape, "It is not an ordinary table.",
                "Choose a table that idem.create_record_table() has created."};
    if (form.relpersistence != RELPERSISTENCE_PERMANENT)
        return {Fault::shape,
                "It is temporary or unlogged: a crash would empty it, and operations would be "
                "executed twice.",
                psprintf("ALTER TABLE %s SET LOGGED", name)};
    if (form.relam != HEAP_TABLE_AM_OID)
        return {Fault::shape, "It is not a heap: it has another access method.",
                "Create a record table with default_table_access_method = heap and move the rows "
                "there."};
    return no_fault;
}

Oid owner_of_records() {
    const auto common = class_of(table_oid(Table::record));
    return common ? common->relowner : InvalidOid;
}

Fault owner_fault(Oid relation, const FormData_pg_class& form, Oid owner) {
    if (form.relowner == owner) return no_fault;
    return {Fault::owner,
            psprintf("Table %s is owned by %s, and idem.record by %s.", qualified_name(relation),
                     role_name(form.relowner), role_name(owner)),
            psprintf("ALTER TABLE %s OWNER TO %s", qualified_name(relation), quoted_role(owner))};
}

}  // namespace

Fault outward_fault(Oid table) {
    const auto form = class_of(table);
    if (!form) return {Fault::gone};
    if (marked_column(table, form->relnatts) == nullptr)
        return {Fault::unmarked, "It has no column of the type idem.key_digest.",
                "Choose a table that idem.create_record_table() has created."};
    const Fault fault = kind_fault(table, *form);
    return fault.kind != Fault::none ? fault : owner_fault(table, *form, owner_of_records());
}

namespace {

// ---- Who may change it --------------------------------------------------------------------------

// A trigger, or a foreign key to the table, would be skipped by what idem writes.
constexpr AclMode changing =
    ACL_INSERT | ACL_UPDATE | ACL_DELETE | ACL_TRUNCATE | ACL_REFERENCES | ACL_TRIGGER;

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

// Who owns the relation, and who else may change it. Only the catalog is read: a partition's parent
// is not locked after the partition.
Fault privileges_fault(Oid relation, Oid owner) {
    HeapTuple tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relation));
    if (!HeapTupleIsValid(tuple)) return no_fault;
    const FormData_pg_class form = *reinterpret_cast<const FormData_pg_class*>(GETSTRUCT(tuple));
    auto writer = writer_in(RELOID, tuple, Anum_pg_class_relacl, owner);
    ReleaseSysCache(tuple);
    const Fault fault = owner_fault(relation, form, owner);
    if (fault.kind != Fault::none) return fault;
    for (AttrNumber i = 1; !writer && i <= form.relnatts; ++i)
        writer = writer_of_column(relation, i, owner);
    if (!writer) return no_fault;
    return {Fault::privileges,
            psprintf("Table %s may be changed by %s, which could write answers that idem then "
                     "returns.",
                     qualified_name(relation), role_name(*writer)),
            psprintf("REVOKE INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER ON %s FROM %s",
                     qualified_name(relation), quoted_role(*writer))};
}

// ---- Whose code writing a row would run ---------------------------------------------------------

// Of a partition, its parents count as well: through them its rows can be written, and their keys
// are checked for each row.
Fault parents_fault(Relation relation, Oid owner) {
    const Oid table = RelationGetRelid(relation);
    List* parents = relation->rd_rel->relispartition ? get_partition_ancestors(table) : NIL;
    for (int i = 0; i < list_length(parents); ++i) {
        const Oid parent = list_nth_oid(parents, i);
        const Fault fault = privileges_fault(parent, owner);
        if (fault.kind != Fault::none) return fault;
        if (calls_foreign_code(parent))
            return {Fault::shape,
                    psprintf("The partition key of %s calls a function that is not built in.",
                             qualified_name(parent)),
                    psprintf("ALTER TABLE %s DETACH PARTITION %s",
                             qualified_name(linitial_oid(parents)), qualified_name(table))};
    }
    return no_fault;
}

Fault indexes_fault(Relation relation) {
    List* indexes = RelationGetIndexList(relation);
    for (int i = 0; i < list_length(indexes); ++i) {
        const Oid index = list_nth_oid(indexes, i);
        if (calls_foreign_code(index))
            return {Fault::shape,
                    psprintf("Its index %s calls a function that is not built in.",
                             qualified_name(index)),
                    psprintf("DROP INDEX %s", qualified_name(index))};
    }
    list_free(indexes);
    return no_fault;
}

// ---- Columns and constraints --------------------------------------------------------------------

bool is_tenant_column(const FormData_pg_attribute* column) {
    return is_tenant_type(column->atttypid) && !column->atthasdef && column->attidentity == '\0';
}

bool is_like(const FormData_pg_attribute* column, const FormData_pg_attribute* wanted, Oid type) {
    return !column->attisdropped &&
           namestrcmp(const_cast<Name>(&column->attname), NameStr(wanted->attname)) == 0 &&
           column->atttypid == type && column->attnotnull == wanted->attnotnull &&
           !column->atthasdef && column->attidentity == '\0';
}

// What differs from the columns of idem.record. What a table has lost leaves its place behind.
const char* column_difference(TupleDesc table, TupleDesc common) {
    const int first =
        table->natts > 0 && !TupleDescAttr(table, 0)->attisdropped && has_tenant_column(table) ? 1
                                                                                               : 0;
    if (table->natts < first + record_columns) return "It has fewer columns than idem.record.";
    if (first == 1 && !is_tenant_column(TupleDescAttr(table, 0)))
        return psprintf(
            "Its column \"%s\" is neither a column of idem.record nor a tenant of type "
            "text, integer, bigint or uuid.",
            NameStr(TupleDescAttr(table, 0)->attname));
    for (int i = 0; i < record_columns; ++i) {
        const FormData_pg_attribute* wanted = TupleDescAttr(common, i);
        const Oid type = i == 0 ? digest_type() : wanted->atttypid;
        if (!is_like(TupleDescAttr(table, first + i), wanted, type))
            return psprintf("Its column %d is not like the column \"%s\" of idem.record.",
                            first + i + 1, NameStr(wanted->attname));
    }
    return nullptr;
}

// The columns of idem.record after those that this library knows: of a release that is newer.
bool is_newer_column(const FormData_pg_attribute* column, TupleDesc common, int i) {
    if (i >= common->natts) return false;
    const FormData_pg_attribute* wanted = TupleDescAttr(common, i);
    return is_like(column, wanted, wanted->atttypid);
}

// A column that idem.record does not have; -1 if there is none.
int extra_column(TupleDesc table, TupleDesc common) {
    const int first = has_tenant_column(table) ? 1 : 0;
    for (int i = first + record_columns; i < table->natts; ++i) {
        const FormData_pg_attribute* column = TupleDescAttr(table, i);
        if (!column->attisdropped && !is_newer_column(column, common, i - first)) return i;
    }
    return -1;
}

Fault columns_fault(Relation relation, Relation common) {
    const TupleDesc columns = RelationGetDescr(relation);
    const char* difference = column_difference(columns, RelationGetDescr(common));
    if (difference == nullptr) {
        const int extra = extra_column(columns, RelationGetDescr(common));
        if (extra < 0) return no_fault;
        const char* name = NameStr(TupleDescAttr(columns, extra)->attname);
        return {Fault::shape, psprintf("Its column \"%s\" is not in idem.record.", name),
                psprintf("ALTER TABLE %s DROP COLUMN %s",
                         qualified_name(RelationGetRelid(relation)), quote_identifier(name))};
    }
    const char* marked = marked_column(RelationGetRelid(relation), relation->rd_rel->relnatts);
    return {
        Fault::shape, difference,
        psprintf("Create another table with idem.create_record_table() and move the rows "
                 "there; or, if idem is not to use it: ALTER TABLE %s ALTER COLUMN %s TYPE uuid.",
                 qualified_name(RelationGetRelid(relation)),
                 quote_identifier(marked == nullptr ? "digest" : marked))};
}

// The condition with the names of columns, whose numbers may differ.
const char* condition_of(Relation relation, const ConstrCheck& check) {
    List* context =
        deparse_context_for(RelationGetRelationName(relation), RelationGetRelid(relation));
    return deparse_expression(static_cast<Node*>(stringToNode(check.ccbin)), context, false, false);
}

std::span<const ConstrCheck> checks_of(Relation relation) {
    const TupleConstr* constraints = RelationGetDescr(relation)->constr;
    if (constraints == nullptr) return {};
    return {constraints->check, static_cast<std::size_t>(constraints->num_check)};
}

bool has_check(Relation relation, const char* condition) {
    return std::ranges::any_of(checks_of(relation), [&](const ConstrCheck& check) {
        return strcmp(condition_of(relation, check), condition) == 0;
    });
}

// The name of a constraint that is neither a check nor the primary key; NULL if there is none.
const char* other_constraint(Oid table) {
    constexpr std::string_view known = "pcn";
    ScanKeyData key;
    ScanKeyInit(&key, Anum_pg_constraint_conrelid, BTEqualStrategyNumber, F_OIDEQ,
                ObjectIdGetDatum(table));
    Relation constraints = table_open(ConstraintRelationId, AccessShareLock);
    SysScanDesc scan =
        systable_beginscan(constraints, ConstraintRelidTypidNameIndexId, true, nullptr, 1, &key);
    const char* name = nullptr;
    for (HeapTuple tuple; name == nullptr && HeapTupleIsValid(tuple = systable_getnext(scan));) {
        const auto* constraint = reinterpret_cast<FormData_pg_constraint*>(GETSTRUCT(tuple));
        if (known.find(constraint->contype) == std::string_view::npos)
            name = pstrdup(NameStr(constraint->conname));
    }
    systable_endscan(scan);
    table_close(constraints, AccessShareLock);
    return name;
}

Fault unknown_constraint(const char* table, const char* constraint) {
    return {Fault::shape,
            psprintf("It has the constraint \"%s\", which idem.record does not have.", constraint),
            psprintf("ALTER TABLE %s DROP CONSTRAINT %s", table, quote_identifier(constraint))};
}

Fault constraints_fault(Relation relation, Relation common) {
    const char* table = qualified_name(RelationGetRelid(relation));
    for (const ConstrCheck& check : checks_of(relation))
        if (!has_check(common, condition_of(relation, check)))
            return unknown_constraint(table, check.ccname);
    for (const ConstrCheck& check : checks_of(common)) {
        const char* condition = condition_of(common, check);
        if (!has_check(relation, condition))
            return {Fault::shape, "It lacks a constraint of idem.record.",
                    psprintf("ALTER TABLE %s ADD CHECK (%s)", table, condition)};
    }
    if (const char* constraint = other_constraint(RelationGetRelid(relation)))
        return unknown_constraint(table, constraint);
    return no_fault;
}

// ---- What idem's writes would skip --------------------------------------------------------------

// One of TRUNCATE is never skipped: idem does not truncate.
const Trigger* skipped_trigger(Relation relation) {
    const TriggerDesc* triggers = relation->trigdesc;
    for (int i = 0; triggers != nullptr && i < triggers->numtriggers; ++i)
        if ((triggers->triggers[i].tgtype &
             (TRIGGER_TYPE_INSERT | TRIGGER_TYPE_UPDATE | TRIGGER_TYPE_DELETE)) != 0)
            return &triggers->triggers[i];
    return nullptr;
}

Fault skipped_fault(Relation relation) {
    const char* name = qualified_name(RelationGetRelid(relation));
    const Trigger* trigger = skipped_trigger(relation);
    if (trigger != nullptr && trigger->tgisinternal)
        return {Fault::shape, "A foreign key refers to it, whose trigger idem does not fire.",
                "Drop the foreign keys that refer to the table."};
    if (trigger != nullptr)
        return {Fault::shape,
                psprintf("It has the trigger \"%s\", which idem does not fire.", trigger->tgname),
                psprintf("DROP TRIGGER %s ON %s", quote_identifier(trigger->tgname), name)};
    if (relation->rd_rules != nullptr)
        return {Fault::shape, "It has a rule, which idem does not obey.",
                psprintf("Drop the rules of table %s.", name)};
    if (relation->rd_rel->relrowsecurity)
        return {Fault::shape, "It has row security, which idem does not obey.",
                psprintf("ALTER TABLE %s DISABLE ROW LEVEL SECURITY", name)};
    if (!relation->rd_rel->relispartition && has_superclass(RelationGetRelid(relation)))
        return {Fault::shape,
                "It inherits from another table, through which its rows can be changed.",
                psprintf("End the inheritance, with ALTER TABLE %s NO INHERIT.", name)};
    return no_fault;
}

// ---- The indexes that it must have --------------------------------------------------------------

bool has_digest_index(Relation relation) {
    const Oid primary_key = compat::primary_key_of(relation);
    if (!OidIsValid(primary_key)) return false;
    Relation index = index_open(primary_key, AccessShareLock);
    const bool usable = is_digest_index(index, relation);
    index_close(index, AccessShareLock);
    return usable;
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

Fault missing_index(Relation relation) {
    const char* name = qualified_name(RelationGetRelid(relation));
    if (!has_digest_index(relation))
        return {Fault::shape,
                "It has no primary key on the digest, and the tenant if it has a column for that, "
                "checked at once.",
                add_primary_key(relation, name)};
    if (!OidIsValid(unfinished_index_of(relation)))
        return {Fault::shape, "It has no index of unfinished operations.",
                psprintf("CREATE INDEX ON %s (scope) WHERE state = 'p'", name)};
    return no_fault;
}

}  // namespace

// The indexes are looked at before anything reads their conditions, because reading evaluates calls
// with constants.
Fault fault_of(Relation relation, Relation common) {
    const Oid table = RelationGetRelid(relation);
    Fault fault = kind_fault(table, *relation->rd_rel);
    const auto next = [&fault](auto check) {
        if (fault.kind == Fault::none) fault = check();
    };
    next([&] { return columns_fault(relation, common); });
    next([&] { return privileges_fault(table, common->rd_rel->relowner); });
    next([&] { return parents_fault(relation, common->rd_rel->relowner); });
    next([&] { return constraints_fault(relation, common); });
    next([&] { return skipped_fault(relation); });
    next([&] { return indexes_fault(relation); });
    next([&] { return missing_index(relation); });
    return fault;
}

}  // namespace idem::pg::record_table
