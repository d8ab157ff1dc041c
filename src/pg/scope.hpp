// Scopes, cached: the settings of a family of operations.
//
// The cache is per backend and is dropped as a whole by relation cache invalidation of idem.scope,
// which the functions of pg/scope_table announce, and a trigger for all other changes
// (idem_internal.announce_change()). A scope that a lookup returns stays valid until the next
// lookup: a function looks up once and copies what has to live longer.
#pragma once

#include "pg/scope_settings.hpp"
#include "pg/table.hpp"

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

void init_scopes();

// ---- Rows of idem.scope -------------------------------------------------------------------------

namespace scope_row {

// A list of paths as the scope's request_lists have it.
inline std::string_view list_text(Datum list) {
    return OidOutputFunctionCall(F_ARRAY_OUT, list);
}

struct WithName {
    std::string_view name;
    bool operator()(TupleTableSlot* slot) const {
        return view_of(DatumGetTextPP(*column(slot, column_name))) == name;
    }
};

struct WithId {
    std::int32_t id;
    bool operator()(TupleTableSlot* slot) const {
        return DatumGetInt32(*column(slot, column_id)) == id;
    }
};

// Calls use(slot) for the first committed row that matches. False when there is none.
template <class Match, class Use>
bool scan_for(Match match, Use use) {
    bool found = false;
    scan_committed(Table::scope, [&](TupleTableSlot* slot) {
        found = match(slot);
        if (found) use(slot);
        return !found;
    });
    return found;
}

}  // namespace scope_row
}  // namespace idem::pg
