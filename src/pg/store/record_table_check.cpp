#include "pg/store/record_table_check.hpp"

#include "pg/server/catalog.hpp"
#include "pg/store/table.hpp"
#include "pg/store/triggers.hpp"
#include "pg/store/version.hpp"

extern "C" {
#include "nodes/value.h"
#include "utils/ruleutils.h"
}

namespace idem::pg {

namespace {

using Fault = RecordTableFault;

std::optional<FormData_pg_class> pg_class_of(Oid relation) {
    return find_form<FormData_pg_class>(RELOID, relation);
}

const char* role_in_words(Oid role) {
    return OidIsValid(role) ? psprintf("role \"%s\"", GetUserNameFromId(role, false)) : "PUBLIC";
}

const char* quoted_role(Oid role) {
    return OidIsValid(role) ? quote_identifier(GetUserNameFromId(role, false)) : "PUBLIC";
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
    if (form.relkind != RELKIND_RELATION)
        return {"It is not an ordinary table.",
                "Choose a table that idem.create_record_table() has created."};
    if (form.relpersistence != RELPERSISTENCE_PERMANENT)
        return {
            "It is temporary or unlogged: a crash would empty it, and operations would be "
            "executed twice.",
            psprintf("ALTER TABLE %s SET LOGGED", qualified_name(table))};
    if (form.relam != HEAP_TABLE_AM_OID)
        return {"It is not a heap: it has another access method.",
                psprintf("ALTER TABLE %s SET ACCESS METHOD heap", qualified_name(table))};
    return {};
}

Fault owner_fault(Oid relation, const FormData_pg_class& form, Oid owner) {
    if (form.relowner == owner) return {};
    return {psprintf("Table %s is owned by %s, and idem by %s.", qualified_name(relation),
                     role_in_words(form.relowner), role_in_words(owner)),
            psprintf("Its owner can have added rules, triggers, indexes and statistics, whose code "
                     "would then run as %s: remove them. Then: ALTER TABLE %s OWNER TO %s",
                     role_in_words(owner), qualified_name(relation), quoted_role(owner)),
            Fault::owner};
}

// ---- Who may change it --------------------------------------------------------------------------

// Also of those who may add a trigger or a foreign key: their code would run when others write.
constexpr AclMode changing =
    ACL_INSERT | ACL_UPDATE | ACL_DELETE | ACL_TRUNCATE | ACL_REFERENCES | ACL_TRIGGER;

// The grantee, other than the owner, that the list of a table or a column allows to change rows.
std::optional<Oid> writer_in(SysCacheIdentifier cache, HeapTuple tuple, AttrNumber list,
                             Oid owner) {
    std::optional<Oid> writer;
    bool null = true;
    const Datum value = HeapTupleIsValid(tuple) ? SysCacheGetAttr(cache, tuple, list, &null) : 0;
    const Acl* acl = null ? nullptr : DatumGetAclP(value);
    for (int i = 0; acl != nullptr && !writer && i < ACL_NUM(acl); ++i) {
        const AclItem& item = ACL_DAT(acl)[i];
        if (item.ai_grantee != owner && (ACLITEM_GET_PRIVS(item) & changing) != 0)
            writer = item.ai_grantee;
    }
    if (HeapTupleIsValid(tuple)) ReleaseSysCache(tuple);
    return writer;
}

// Who owns the relation, and who else may change it. Only the catalog is read: a partition's parent
// is not locked after the partition.
Fault privileges_fault(Oid relation, Oid owner) {
    const auto form = pg_class_of(relation);
    if (!form) return {};
    if (const Fault fault = owner_fault(relation, *form, owner)) return fault;
    auto writer = writer_in(RELOID, SearchSysCache1(RELOID, ObjectIdGetDatum(relation)),
                            Anum_pg_class_relacl, owner);
    for (AttrNumber i = 1; !writer && i <= form->relnatts; ++i)
        writer =
            writer_in(ATTNUM, SearchSysCache2(ATTNUM, ObjectIdGetDatum(relation), Int16GetDatum(i)),
                      Anum_pg_attribute_attacl, owner);
    if (!writer) return {};
    return {psprintf("Table %s may be changed by %s, which could write answers that idem then "
                     "returns, or run code with the rights of the role that purges.",
                     qualified_name(relation), role_in_words(*writer)),
            psprintf("REVOKE INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER ON %s FROM %s "
                     "CASCADE",
                     qualified_name(relation), quoted_role(*writer)),
            Fault::privileges};
}

// Of a partition, its parents count as well: through them its rows can be written, and their keys
// are checked for each row.
Fault parents_fault(Relation relation, Oid owner) {
    const Oid table = RelationGetRelid(relation);
    List* parents = relation->rd_rel->relispartition ? get_partition_ancestors(table) : NIL;
    for (int i = 0; i < list_length(parents); ++i) {
        const Oid parent = list_nth_oid(parents, i);
        if (const Fault fault = privileges_fault(parent, owner)) return fault;
        if (calls_foreign_code(parent))
            return {psprintf("The partition key of %s calls a function that is not built in.",
                             qualified_name(parent)),
                    psprintf("ALTER TABLE %s DETACH PARTITION %s",
                             qualified_name(linitial_oid(parents)), qualified_name(table))};
    }
    return {};
}

// ---- Columns and constraints --------------------------------------------------------------------

// The types that a tenant's column may have: none runs a check when a value is read or written.
bool is_tenant_type(Oid type) {
    return type == TEXTOID || type == INT4OID || type == INT8OID || type == UUIDOID;
}

bool is_stored_as_given(const FormData_pg_attribute* column) {
    return !column->atthasdef && column->attidentity == '\0';
}

bool is_like(const FormData_pg_attribute* column, const FormData_pg_attribute* wanted, Oid type) {
    return !column->attisdropped &&
           namestrcmp(const_cast<Name>(&column->attname), NameStr(wanted->attname)) == 0 &&
           column->atttypid == type && column->attnotnull == wanted->attnotnull &&
           is_stored_as_given(column);
}

Fault unlike(Relation relation, const char* difference) {
    const Oid table = RelationGetRelid(relation);
    const char* marked = marked_column(table, relation->rd_rel->relnatts);
    return {
        difference,
        psprintf("Create another table with idem.create_record_table() and move the rows "
                 "there; or, if idem is not to use it: ALTER TABLE %s ALTER COLUMN %s TYPE "
                 "uuid.",
                 qualified_name(table), quote_identifier(marked == nullptr ? "digest" : marked))};
}

// The columns of idem.record may stand after one of the tenant. What a table has lost leaves its
// place behind, in idem.record too, where others may have added a column of their own.
Fault columns_fault(Relation relation, TupleDesc common) {
    const TupleDesc table = RelationGetDescr(relation);
    const FormData_pg_attribute* tenant = TupleDescAttr(table, 0);
    const int first = !tenant->attisdropped && has_tenant_column(table) ? 1 : 0;
    const AttrNumber last = get_attnum(table_oid(Table::record), last_record_column);
    const int shared = last == InvalidAttrNumber ? common->natts : last;
    if (table->natts < first + shared)
        return unlike(relation, "It has fewer columns than idem.record.");
    if (first == 1 && !(is_tenant_type(tenant->atttypid) && is_stored_as_given(tenant)))
        return unlike(relation,
                      psprintf("Its column \"%s\" is neither a column of idem.record nor a tenant "
                               "of type text, integer, bigint or uuid.",
                               NameStr(tenant->attname)));
    for (int i = 0; i < shared; ++i) {
        const FormData_pg_attribute* wanted = TupleDescAttr(common, i);
        const Oid type = i == 0 ? digest_type() : wanted->atttypid;
        if (!is_like(TupleDescAttr(table, first + i), wanted, type))
            return unlike(relation,
                          psprintf("Its column %d is not like the column \"%s\" of idem.record.",
                                   first + i + 1, NameStr(wanted->attname)));
    }
    for (int i = first + shared; i < table->natts; ++i) {
        const FormData_pg_attribute* more = TupleDescAttr(table, i);
        const int at = i - first;
        const bool known = at < common->natts && is_like(more, TupleDescAttr(common, at),
                                                         TupleDescAttr(common, at)->atttypid);
        const char* name = NameStr(more->attname);
        if (!more->attisdropped && !known)
            return {psprintf("Its column \"%s\" is not idem's.", name),
                    psprintf("Keep its contents elsewhere, and drop the column from table %s.",
                             qualified_name(RelationGetRelid(relation)))};
    }
    return {};
}

// The conditions of the table's checks, in their order, with the names of columns, whose numbers
// may differ.
List* conditions_of(Relation relation) {
    const TupleConstr* constraints = RelationGetDescr(relation)->constr;
    List* context =
        deparse_context_for(RelationGetRelationName(relation), RelationGetRelid(relation));
    List* conditions = NIL;
    for (int i = 0; constraints != nullptr && i < constraints->num_check; ++i) {
        auto* check = static_cast<Node*>(stringToNode(constraints->check[i].ccbin));
        conditions =
            lappend(conditions, makeString(deparse_expression(check, context, false, false)));
    }
    return conditions;
}

Fault unknown_constraint(Relation relation, const char* constraint) {
    return {psprintf("It has the constraint \"%s\", which is not idem's.", constraint),
            psprintf("ALTER TABLE %s DROP CONSTRAINT %s",
                     qualified_name(RelationGetRelid(relation)), quote_identifier(constraint))};
}

Fault checks_fault(Relation relation, Relation common) {
    const List* present = conditions_of(relation);
    const List* wanted = conditions_of(common);
    for (int i = 0; i < list_length(present); ++i)
        if (!list_member(wanted, list_nth(present, i)))
            return unknown_constraint(relation,
                                      RelationGetDescr(relation)->constr->check[i].ccname);
    const List* missing = list_difference(wanted, present);
    if (missing == NIL) return {};
    return {"It lacks a constraint of idem.record.",
            psprintf("ALTER TABLE %s ADD CHECK (%s)", qualified_name(RelationGetRelid(relation)),
                     strVal(linitial(missing)))};
}

// Through the partitioned table, other roles could change the rows.
Fault own_partition_fault(Relation relation) {
    if (!relation->rd_rel->relispartition) return {};
    const Oid table = RelationGetRelid(relation);
    return {"It is a partition of another table, through which its rows can be changed.",
            psprintf("ALTER TABLE %s DETACH PARTITION %s",
                     qualified_name(get_partition_parent(table, true)), qualified_name(table))};
}

// The columns of idem.record and idem.watermark that have a value in every row.
constexpr std::array<std::string_view, 9> never_null = {
    "digest", "created", "expires", "scope", "state", "tenant", "seq", "updated", "source"};

Fault own_columns_fault(Relation relation) {
    const TupleDesc table = RelationGetDescr(relation);
    for (int i = 0; i < table->natts; ++i) {
        const FormData_pg_attribute* column = TupleDescAttr(table, i);
        if (column->attisdropped) continue;
        const char* name = NameStr(column->attname);
        const char* alter =
            psprintf("ALTER TABLE %s ALTER COLUMN %s DROP",
                     qualified_name(RelationGetRelid(relation)), quote_identifier(name));
        if (!is_stored_as_given(column))
            return {psprintf("Its column \"%s\" has a default, which idem does not use.", name),
                    psprintf("%s %s", alter,
                             column->attidentity != '\0'    ? "IDENTITY"
                             : column->attgenerated != '\0' ? "EXPRESSION"
                                                            : "DEFAULT")};
        if (column->attnotnull &&
            std::ranges::find(never_null, std::string_view(name)) == never_null.end())
            return {psprintf("Its column \"%s\" is NOT NULL, and idem has no value for it in every "
                             "row.",
                             name),
                    psprintf("%s NOT NULL", alter)};
    }
    return {};
}

Fault own_checks_fault(Relation relation) {
    constexpr const char* own_check = "record_key";
    const TupleConstr* constraints = RelationGetDescr(relation)->constr;
    for (int i = 0; constraints != nullptr && i < constraints->num_check; ++i) {
        const char* name = constraints->check[i].ccname;
        if (strcmp(name, own_check) != 0) return unknown_constraint(relation, name);
    }
    return {};
}

// ---- What idem's writes would skip --------------------------------------------------------------

Fault skipped_fault(Relation relation) {
    const char* name = qualified_name(RelationGetRelid(relation));
    if (const Trigger* trigger = before_trigger(relation))
        return {
            psprintf("Its trigger \"%s\" fires before a row is written, and could change or "
                     "suppress it.",
                     trigger->tgname),
            psprintf("ALTER TABLE %s DISABLE TRIGGER %s", name, quote_identifier(trigger->tgname))};
    if (relation->rd_rules != nullptr)
        return {"It has a rule, which idem does not obey.",
                psprintf("Drop the rules of table %s.", name)};
    if (relation->rd_rel->relrowsecurity)
        return {"It has row security, which idem does not obey.",
                psprintf("Revoke SELECT from the roles that must not see all rows of table %s, "
                         "and disable its row security.",
                         name)};
    if (!relation->rd_rel->relispartition && has_superclass(RelationGetRelid(relation)))
        return {"It inherits from another table, through which its rows can be changed.",
                psprintf("End the inheritance of table %s.", name)};
    if (relation->rd_rel->relhassubclass &&
        find_inheritance_children(RelationGetRelid(relation), NoLock) != NIL)
        return {"Another table inherits from it, whose rows idem does not find.",
                psprintf("End the inheritance from table %s.", name)};
    return {};
}

// ---- Indexes ------------------------------------------------------------------------------------

// The constraint of the index, unless it is the primary key. The constraint says so itself, because
// REINDEX CONCURRENTLY may move it to another index after the relation cache was read.
const char* other_constraint(Oid index) {
    const auto form = find_form<FormData_pg_constraint>(CONSTROID, get_index_constraint(index));
    return !form || form->contype == CONSTRAINT_PRIMARY ? nullptr : pstrdup(NameStr(form->conname));
}

Fault indexes_fault(Relation relation) {
    List* indexes = RelationGetIndexList(relation);
    for (int i = 0; i < list_length(indexes); ++i) {
        const Oid index = list_nth_oid(indexes, i);
        if (const char* constraint = other_constraint(index))
            return unknown_constraint(relation, constraint);
        if (calls_foreign_code(index))
            return {psprintf("Its index %s calls a function that is not built in.",
                             qualified_name(index)),
                    psprintf("DROP INDEX %s", qualified_name(index))};
    }
    list_free(indexes);
    return {};
}

Fault missing_index(Relation relation) {
    const Oid table = RelationGetRelid(relation);
    const Oid primary_key = compat::primary_key_of(relation);
    bool is_usable = false;
    if (OidIsValid(primary_key)) {
        Relation index = index_open(primary_key, AccessShareLock);
        is_usable = is_digest_index(index, relation);
        index_close(index, AccessShareLock);
    }
    if (!is_usable)
        return {
            "It has no primary key on the digest, and the tenant if it has a column for that, "
            "checked at once.",
            psprintf("ALTER TABLE %s %sADD PRIMARY KEY (%s)", qualified_name(table),
                     OidIsValid(primary_key) ? psprintf("DROP CONSTRAINT %s, ",
                                                        quote_identifier(get_rel_name(primary_key)))
                                             : "",
                     digest_columns(RelationGetDescr(relation)))};
    if (!OidIsValid(find_unfinished_index(relation)))
        return {"It has no index of unfinished operations.",
                psprintf("CREATE INDEX ON %s (scope) WHERE state = 'p'", qualified_name(table))};
    return {};
}

}  // namespace

Oid digest_type() {
    const Oid type = GetSysCacheOid2(TYPENAMENSP, Anum_pg_type_oid, CStringGetDatum("key_digest"),
                                     ObjectIdGetDatum(own_schema()));
    const bool ours = OidIsValid(type) &&
                      getExtensionOfObject(TypeRelationId, type) == get_extension_oid("idem", true);
    return ours ? type : InvalidOid;
}

RecordTableFault outward_fault(Oid table) {
    const auto form = pg_class_of(table);
    if (!form)
        return {psprintf("There is no table with OID %u. It may have been dropped.", table),
                "Name an existing table in idem.use_records().", Fault::gone};
    if (marked_column(table, form->relnatts) == nullptr)
        return {"It has no column of the type idem.key_digest.",
                "Choose a table that idem.create_record_table() has created.", Fault::unmarked};
    if (const Fault fault = kind_fault(table, *form)) return fault;
    const auto common = pg_class_of(table_oid(Table::record));
    Fault fault = owner_fault(table, *form, common ? common->relowner : InvalidOid);
    // As docs/scale-out.md fences a tenant that moves.
    if (fault)
        fault.remedy = psprintf(
            "If its tenant is moving to another server, drop the table after that. If not: %s",
            fault.remedy);
    return fault;
}

// An own table may have more columns while the library is older than the SQL objects.
RecordTableFault column_of_others(Relation relation, int written) {
    const TupleDesc table = RelationGetDescr(relation);
    for (int i = written; i < table->natts && std::is_eq(library_order()); ++i) {
        const FormData_pg_attribute* column = TupleDescAttr(table, i);
        const char* name = NameStr(column->attname);
        if (!column->attisdropped)
            return {
                psprintf("Its column \"%s\" is not idem's. A dump could not be restored.", name),
                psprintf("Keep its contents elsewhere. Then: ALTER TABLE %s DROP COLUMN %s",
                         qualified_name(RelationGetRelid(relation)), quote_identifier(name))};
    }
    return {};
}

RecordTableFault fault_of_own(Relation relation, int written) {
    Fault fault = kind_fault(RelationGetRelid(relation), *relation->rd_rel);
    if (!fault) fault = own_partition_fault(relation);
    if (!fault) fault = column_of_others(relation, written);
    if (!fault) fault = own_columns_fault(relation);
    if (!fault) fault = own_checks_fault(relation);
    if (!fault) fault = skipped_fault(relation);
    return fault;
}

// The indexes are looked at before anything reads their conditions, because reading evaluates calls
// with constants.
RecordTableFault fault_of(Relation relation, Relation common) {
    const Oid owner = common->rd_rel->relowner;
    Fault fault = outward_fault(RelationGetRelid(relation));
    if (!fault) fault = columns_fault(relation, RelationGetDescr(common));
    if (!fault) fault = privileges_fault(RelationGetRelid(relation), owner);
    if (!fault) fault = parents_fault(relation, owner);
    if (!fault) fault = checks_fault(relation, common);
    if (!fault) fault = indexes_fault(relation);
    if (!fault) fault = skipped_fault(relation);
    if (!fault) fault = missing_index(relation);
    return fault;
}

}  // namespace idem::pg
