#include "pg/owner.hpp"

namespace idem::pg {

AsOwner::AsOwner(Relation table) {
    GetUserIdAndSecContext(&user_, &context_);
    SetUserIdAndSecContext(table->rd_rel->relowner, context_ | SECURITY_RESTRICTED_OPERATION);
    settings_ = NewGUCNestLevel();
    (void)set_config_option("search_path", "pg_catalog, pg_temp", PGC_USERSET, PGC_S_SESSION,
                            GUC_ACTION_SAVE, true, 0, false);
}

void AsOwner::end() {
    AtEOXact_GUC(false, settings_);
    SetUserIdAndSecContext(user_, context_);
}

// The catalog notes what a relation depends on, unless it is built in.
bool calls_foreign_code(Oid relation) {
    constexpr std::array code = {ProcedureRelationId,      OperatorRelationId,
                                 TypeRelationId,           OperatorClassRelationId,
                                 OperatorFamilyRelationId, AccessMethodRelationId};
    ScanKeyData keys[2];
    ScanKeyInit(&keys[0], Anum_pg_depend_classid, BTEqualStrategyNumber, F_OIDEQ,
                ObjectIdGetDatum(RelationRelationId));
    ScanKeyInit(&keys[1], Anum_pg_depend_objid, BTEqualStrategyNumber, F_OIDEQ,
                ObjectIdGetDatum(relation));
    Relation depend = table_open(DependRelationId, AccessShareLock);
    SysScanDesc scan =
        systable_beginscan(depend, DependDependerIndexId, true, nullptr, lengthof(keys), keys);
    bool found = false;
    for (HeapTuple tuple; !found && HeapTupleIsValid(tuple = systable_getnext(scan));) {
        const auto* dependency = reinterpret_cast<FormData_pg_depend*>(GETSTRUCT(tuple));
        found = dependency->objsubid == 0 &&
                std::find(code.begin(), code.end(), dependency->refclassid) != code.end();
    }
    systable_endscan(scan);
    table_close(depend, AccessShareLock);
    return found;
}

namespace {

Oid first_caller(const List* relations) {
    for (int i = 0; i < list_length(relations); ++i)
        if (calls_foreign_code(list_nth_oid(relations, i))) return list_nth_oid(relations, i);
    return InvalidOid;
}

}  // namespace

Oid keeps_from_rewriting(Relation table) {
    if (!superuser_arg(table->rd_rel->relowner)) return InvalidOid;
    List* indexes = RelationGetIndexList(table);
    Oid caller = first_caller(indexes);
    list_free(indexes);
    if (!OidIsValid(caller) && table->rd_rel->relispartition)
        caller = first_caller(get_partition_ancestors(RelationGetRelid(table)));
    return caller;
}

}  // namespace idem::pg
