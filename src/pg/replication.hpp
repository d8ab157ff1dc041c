// What logical replication asks of idem's tables. Rows are written past the executor, which refuses
// an update or delete that cannot be published, because it would stop every subscription: so
// compat::update_tuple() and delete_row() make the executor's check.
#pragma once

#include "pg/server.hpp"

namespace idem::pg {

// Whether an update of the table can be published, or need not be: what CheckCmdReplicaIdentity()
// raises about, as a question, for a table that can do without the update.
bool may_publish_update(Relation relation);

// Whether a subscription of this database, enabled or not, writes the table. Its rows are then the
// publisher's, who may still change what has expired here: the subscription may lag behind.
bool is_subscribed(Relation relation);

}  // namespace idem::pg
