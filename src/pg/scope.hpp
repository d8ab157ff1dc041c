// Scopes: the contract of a family of operations, cached per backend.
//
// The cache is dropped as a whole through relation cache invalidation of idem.scope, which
// pg/scope_admin and, for everybody else, a trigger announce (api/announce_change). What lookup
// hands out stays valid until the next lookup, so a function looks up once and keeps what outlives
// it elsewhere. Who changes scopes is pg/scope_admin.
#pragma once

#include "pg/document.hpp"
#include "pg/server.hpp"

namespace idem::pg {

// What happens to a new key that is easily used twice (see core/weakness.hpp).
enum class WeakKeys { allow, warn, reject };

struct Scope {
    char name[NAMEDATALEN];  // the hash key
    std::int32_t id;
    Oid owner;
    std::int64_t ttl;    // microseconds, as the other lengths of time
    std::int64_t lease;  // what a leased claim is renewed for
    std::int64_t wait;
    std::optional<std::int32_t> max_attempts;       // none: as many as it takes
    std::optional<std::int32_t> claims_per_minute;  // none: no limit; of each tenant
    WeakKeys weak_keys;
    bool request_required;
    bool tenant_required;
    bool reject_stale_keys;
    bool store_response;
    PathList request_exclude;
    PathList response_exclude;
    TextList transient_sqlstates;  // codes and classes, beside those that always are
};
static_assert(std::is_trivially_copyable_v<Scope> && std::is_trivially_destructible_v<Scope>);

// Nothing unless the text is allow, warn or reject.
std::optional<WeakKeys> weak_keys_of(std::string_view text);

// NULL when there is no such scope.
const Scope* find_scope(std::string_view name);

// The same for whoever has only a record, or the token of one. NULL: the scope was dropped.
const Scope* find_scope_by_id(std::int32_t id);

// The name most like this one, of the scopes that the current user may use; NULL if none is near.
const char* nearest_scope(std::string_view name);

// Finds the scope and checks that the current user has the privileges of its owner; raises ID008 or
// 42501. A scope whose owner was dropped is nobody's but the superuser's. function is for the
// message.
const Scope& usable_scope(std::optional<std::string_view> name, const char* function);

// Whether the current user may know the settings and figures of a scope, though no key of it: who
// may use it, and those who watch the server.
bool may_observe(Oid owner);

void init_scopes();

}  // namespace idem::pg
