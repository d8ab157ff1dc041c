#include "pg/server/owner.hpp"

#include "pg/server/catalog.hpp"

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

Oid keeps_from_rewriting(Relation table) {
    if (!superuser_arg(table->rd_rel->relowner)) return InvalidOid;
    List* relations = RelationGetIndexList(table);
    if (table->rd_rel->relispartition)
        relations = list_concat(relations, get_partition_ancestors(RelationGetRelid(table)));
    for (int i = 0; i < list_length(relations); ++i)
        if (calls_foreign_code(list_nth_oid(relations, i))) return list_nth_oid(relations, i);
    return InvalidOid;
}

}  // namespace idem::pg
