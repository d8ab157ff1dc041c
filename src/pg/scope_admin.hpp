// Writing idem.scope. Changes are serialised by a lock on the table, kept to the transaction's end,
// and announced to every backend's cache, whose entries also go when the transaction rolls back.
#pragma once

#include "pg/server.hpp"

namespace idem::pg {

// "None" for a limit that is none, where NULL means something else.
inline constexpr std::int32_t no_limit = -1;

// What create_scope() and alter_scope() set, checked. What is NULL or empty is left as it is.
struct ScopeRules {
    const Interval* ttl;
    const Interval* lease;
    const Interval* wait;
    std::optional<bool> request_required;
    ArrayType* request_exclude;
    std::optional<bool> tenant_required;
    std::optional<bool> reject_stale_keys;
    std::optional<std::int32_t> max_attempts;
    std::optional<std::int32_t> claims_per_minute;
    std::optional<std::string_view> weak_keys;
    std::optional<bool> store_response;
    ArrayType* response_exclude;
    ArrayType* transient_sqlstates;
    std::optional<Oid> owner;
};

// Waits for whoever is changing scopes. What was looked up before may be outdated after.
void lock_scopes();

// Raises 42710 when the name is taken.
void insert_scope(std::string_view name, const ScopeRules& rules);

// Both after lock_scopes(), with the id of a scope that was looked up since.
void update_scope(std::int32_t id, const ScopeRules& rules);
void delete_scope(std::int32_t id);

}  // namespace idem::pg
