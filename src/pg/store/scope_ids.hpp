// The ids of scopes. An id is a part of the digest of every key, so it is never given twice: a new
// scope would inherit the records that an old one left, and answer with them.
//
// The sequence idem.scope_id alone does not ensure that: replication leaves it behind. So a new id
// is also above all ids in idem.scope and idem.dropped_scope, which are replicated and dumped, and
// in all record tables but idem.record, which may have been restored from another database. Where
// the sequence is behind, or nothing shows that it is not, idem.record and watermarks count too.
#pragma once

#include "pg/server/postgres.hpp"

namespace idem::pg {

inline constexpr int dropped_scope_columns = 2;

// The id of a new scope. Reads the other record tables, and then locks the scope table against
// changes, until the end of the transaction. The first call in a database that was restored or
// replicated also reads idem.record, under that lock; no claim waits for it.
std::int32_t lock_next_scope_id();

// Notes that the scope is dropped, as part of the caller's transaction and under the same lock.
void note_dropped_scope(std::int32_t id);

// What a scope has left behind, or all scopes if none is named: records that have not expired, and
// watermarks. If it finds nothing, it has waited until every transaction that writes to these
// tables had ended, and keeps others from writing until this one ends.
struct Keys {
    std::int64_t records = 0;
    std::int64_t watermarks = 0;
    TimestampTz until = 0;  // when the last of the records expires
    bool any() const { return records > 0 || watermarks > 0; }
};
Keys keys_of(std::optional<std::int32_t> scope);

List* dropped_scopes();

}  // namespace idem::pg
