#include "pg/replication.hpp"

namespace idem::pg {

bool may_publish_update(Relation relation) {
    PublicationDesc published;
    RelationBuildPublicationDesc(relation, &published);
    if (!published.pubactions.pubupdate) return true;
    return published.rf_valid_for_update && published.cols_valid_for_update &&
           (relation->rd_rel->relreplident == REPLICA_IDENTITY_FULL ||
            OidIsValid(RelationGetReplicaIndex(relation)));
}

bool is_subscribed(Relation relation) {
    ScanKeyData key;
    ScanKeyInit(&key, Anum_pg_subscription_rel_srrelid, BTEqualStrategyNumber, F_OIDEQ,
                ObjectIdGetDatum(RelationGetRelid(relation)));
    Relation subscribed = table_open(SubscriptionRelRelationId, AccessShareLock);
    SysScanDesc scan = systable_beginscan(subscribed, SubscriptionRelSrrelidSrsubidIndexId, true,
                                          nullptr, 1, &key);
    const bool found = HeapTupleIsValid(systable_getnext(scan));
    systable_endscan(scan);
    table_close(subscribed, AccessShareLock);
    return found;
}

}  // namespace idem::pg
