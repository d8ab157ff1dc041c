#include "pg/record_table_check.hpp"

#include "pg/compat.hpp"
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
                psprintf("Table %s is owned by %s, and idem.record by %s.",
                         qualified_name(relation), role_name(form.relowner), role_name(owner)),
                relation};
    for (AttrNumber i = 1; !writer && i <= form.relnatts; ++i)
        writer = writer_of_column(relation, i, owner);
    if (!writer) return {Fault::none};
    return {Fault::privileges,
            psprintf("Table %s may be changed by %s, which could write answers that idem then "
                     "returns.",
                     qualified_name(relation), role_name(*writer)),
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
    if (table->natts < first + record_columns) return "It has fewer columns than idem.record.";
    for (int i = 0; i < record_columns; ++i) {
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

}  // namespace

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

// ---- What cures it ------------------------------------------------------------------------------

namespace {

const char* quoted_role(Oid role) {
    return OidIsValid(role) ? quote_identifier(GetUserNameFromId(role, false)) : "PUBLIC";
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

}  // namespace

const char* remedy_for(Relation relation, Relation common, const Fault& fault) {
    const char* name = qualified_name(RelationGetRelid(relation));
    switch (fault.kind) {
        case Fault::owner:
            return psprintf("ALTER TABLE %s OWNER TO %s", qualified_name(fault.relation),
                            quoted_role(common->rd_rel->relowner));
        case Fault::privileges:
            return psprintf("REVOKE INSERT, UPDATE, DELETE, TRUNCATE ON %s FROM %s",
                            qualified_name(fault.relation), quoted_role(fault.writer));
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

}  // namespace idem::pg::record_table
