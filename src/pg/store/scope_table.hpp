// The administration of scopes: changes of the table idem.scope, and scopes as SQL.
//
// Changes are serialised by a ShareRowExclusive lock on the table, which is kept until the
// transaction ends. When the transaction rolls back, the caches are dropped once more.
#pragma once

#include "pg/store/scope.hpp"

namespace idem::pg {

using ScopeRow = Row<scope_row::columns>;

inline std::int32_t id_of(const ScopeRow& row) {
    return DatumGetInt32(row.at(scope_row::column_id).value);
}
inline std::string_view name_of(const ScopeRow& row) {
    return view_of(DatumGetTextPP(row.at(scope_row::column_name).value));
}

// The row of a new scope, whose settings have their defaults. Raises 22023 unless the name has 1 to
// 63 bytes.
ScopeRow new_scope(std::string_view name);

// Gives the setting, by its number, a value in the row, which is none for -1 or an interval of zero
// if it has no default. Raises 22004 or 22023 unless the value is one that the setting can have.
void change(ScopeRow& row, std::size_t number, NullableDatum value);

// The owner's role gets access to all keys of the scope. The caller must be able to become that
// role, as for ALTER ... OWNER TO.
void change_owner(ScopeRow& row, Oid owner);

// Whether the setting has the same value in both; intervals are the same if they are as long as
// each other.
bool same_value(Oid type, NullableDatum a, NullableDatum b);

NullableDatum preset_value(const Setting& setting);

// The call of idem.create_scope() that makes the scope: "SELECT idem.create_scope(...);" with its
// owner and the settings that differ from their defaults. The caller has looked the scope up.
const char* scope_definition(std::int32_t id);

// The functions below lock the table. Changes by other transactions are waited for, so a scope that
// was looked up before the lock may be outdated after it.

// Gives the new scope an id. Raises 42710 when the name is taken. With if_not_exists, returns false
// then if the scope has exactly these settings.
bool insert_scope(ScopeRow& row, bool if_not_exists);

struct StoredScope {
    ItemPointerData tid;
    ScopeRow row;
};

// Call these with the id of a scope that was looked up under the lock. The first raises 22023
// unless the settings of the row, compared with those before, go together. The last does not note
// the id as that of a dropped scope.
void update_scope(StoredScope& scope, const ScopeRow& before);
StoredScope stored_scope(std::int32_t id);
void remove_scope(std::int32_t id);

// ---- Scopes of another server -------------------------------------------------------------------

// A value of the type idem.scope as a row, checked as what create_scope() is given.
ScopeRow checked_row(HeapTupleHeader scope);

// The role's name as SQL writes it; NULL if there is none, or if it was dropped.
const char* role_name(Oid role);

// Raises 42710 unless the given scope has the settings of the stored one.
void require_same(const ScopeRow& stored, const ScopeRow& given, const char* hint);

// Adds a row, whose id no scope has.
void place_scope(const ScopeRow& row);

}  // namespace idem::pg
