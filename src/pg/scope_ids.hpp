// The ids of scopes. An id is part of the digest of every key, so it is never given twice: a new
// scope would inherit what is left of an old one, and answer with it.
//
// The sequence idem.scope_id alone does not ensure that: logical replication leaves it behind, and
// anybody who may alter it can set it back. idem.dropped_scope keeps the ids of dropped scopes, and
// is replicated and dumped as the scopes are. So a new id is above all in these two tables; and
// where the sequence is behind them, or nothing says that it is not, above those in every record
// and watermark.
#pragma once

#include "pg/server.hpp"

namespace idem::pg {

// The id of a new scope. The caller has locked the scope table. Reads all records the first time
// that it is called in a database that was restored, replicated or updated; no claim waits for it.
std::int32_t next_scope_id();

// Notes that the scope is dropped, as part of the caller's transaction, under the same lock.
void note_dropped_scope(std::int32_t id);

// The ids of the scopes that were noted, a list of integers. Nothing when the objects of the
// extension are of a release before 0.3.0, which noted none.
std::optional<List*> dropped_scopes();

// What can be said where none is noted: the sequence has given the id, there are scopes, and this
// is none of them. Where there is no scope at all, a dump may be on its way in.
bool seems_dropped(std::int32_t id);

}  // namespace idem::pg
