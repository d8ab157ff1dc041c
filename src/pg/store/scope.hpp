// Scopes, cached: the settings of a family of operations.
//
// The cache is per backend and is dropped as a whole by relation cache invalidation of idem.scope,
// which the functions of pg/store/scope_table announce, and a trigger for all other changes
// (idem_internal.announce_change()). A scope that a lookup returns stays valid until the next
// lookup: a function looks up once and copies what has to live longer. Lookups by triggers that a
// write fires do not count.
#pragma once

#include "pg/store/scope_settings.hpp"

namespace idem::pg {

// NULL when there is no such scope.
const Scope* find_scope(std::string_view name);

// The same for a caller that has only a record, or the token of one. NULL: the scope was dropped.
const Scope* find_scope_by_id(std::int32_t id);

// Whether the scope's records are elsewhere now, if a scope has changed since the last call of the
// functions above. Nothing if none has, or if the scope was dropped. What those functions have
// returned stays valid. Raises 40001 if the tenant of a call comes from elsewhere now: the caller
// has locked the table of a key that its retries would not find.
std::optional<bool> records_after_change(std::int32_t id);

// The most similar name of a scope that the current user may use; NULL if none is similar.
const char* nearest_scope(std::string_view name);

// The members that do not count when a request is compared with this fingerprint: those of the list
// that it was made with, in the current memory context. An own look at the table finds a list that
// is younger than the cache. Raises XX001 if the scope has no such list.
PathList request_list(const Scope& scope, const bytea* fingerprint);

// Finds the scope and checks that the current user has the privileges of its owner. Raises ID008 or
// 42501; function is the called function's name for the message. Only superusers may use a scope
// whose owner was dropped.
const Scope& usable_scope(std::optional<std::string_view> name, const char* function);

// Whether the current user may see the settings and figures of a scope, though none of its keys: a
// user of the scope, or a member of pg_monitor.
bool may_observe(Oid owner);

// The first when idem.scope has changed, the second before triggers fire.
void forget_scopes();
void keep_scopes();

}  // namespace idem::pg
