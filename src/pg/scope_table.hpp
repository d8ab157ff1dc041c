// The administration of scopes: changes of the table idem.scope, and scopes as SQL.
//
// Changes are serialised by a ShareRowExclusive lock on the table, which is kept until the
// transaction ends. When the transaction rolls back, the caches are dropped once more.
#pragma once

#include "pg/scope.hpp"

namespace idem::pg {

using ScopeRow = Row<scope_row::columns>;

// What create_scope() and alter_scope() set: checked values, by the number of the setting. Nothing
// leaves a setting as it is.
struct ScopeRules {
    std::array<std::optional<NullableDatum>, settings.size()> values;
    std::optional<Oid> owner;
};

// Whether the two values are the same; intervals are if they are as long as each other.
bool same_value(Oid type, NullableDatum a, NullableDatum b);

// The setting's default.
NullableDatum preset_value(const Setting& setting);

// The call of idem.create_scope() that makes the scope: "SELECT idem.create_scope(...);" with its
// owner and the settings that differ from their defaults. The caller has looked the scope up.
const char* scope_definition(std::int32_t id);

// Waits for other transactions that change scopes. A scope that was looked up before may be
// outdated afterwards.
void lock_scopes();

// What happens when the name is taken.
enum class NameTaken {
    refused,        // 42710
    kept_if_equal,  // 42710 unless the scope has exactly these rules
};

// Waits as lock_scopes() does. Returns false when the scope exists already, with these rules.
bool insert_scope(std::string_view name, const ScopeRules& rules, NameTaken taken);

// Call both after lock_scopes(), with the id of a scope that was looked up since.
void update_scope(std::int32_t id, const ScopeRules& rules);
void delete_scope(std::int32_t id);

// ---- Scopes of another server -------------------------------------------------------------------

// A value of the type idem.scope as a row. Its values are checked as those of create_scope().
ScopeRow checked_row(HeapTupleHeader scope);

// Call these after lock_scopes(). The first raises 42710 if the scope with this id has other
// settings than the row. The second adds a row, whose id no scope has. The third deletes a scope
// and, unlike delete_scope(), does not note its id.
void require_same_rules(std::int32_t id, const ScopeRow& row);
void place_scope(const ScopeRow& row);
void remove_scope(std::int32_t id);

}  // namespace idem::pg
