// Scopes: the contract of a family of operations, cached per backend.
//
// The cache is dropped as a whole through relation cache invalidation of idem.scope. What lookup
// hands out stays valid until the next lookup, so a function looks up once and keeps what outlives
// it elsewhere.
#pragma once

#include "pg/server.hpp"

namespace idem::pg {

struct Scope {
    char name[NAMEDATALEN];  // the hash key
    std::int32_t id;
    Oid owner;
    std::int64_t ttl;   // microseconds
    std::int64_t wait;  // microseconds
    bool request_required;
    bool tenant_required;
    const std::string_view* exclude;
    std::size_t exclude_count;

    std::span<const std::string_view> request_exclude() const { return {exclude, exclude_count}; }
};

struct NewScope {
    std::string_view name;
    Oid owner;
    const Interval* ttl;
    const Interval* wait;
    bool request_required;
    bool tenant_required;
    ArrayType* request_exclude;
};

// NULL when there is no such scope.
const Scope* find_scope(std::string_view name);

// Finds the scope and checks that the current user has the privileges of its owner; raises ID008 or
// 42501. A scope whose owner was dropped is nobody's but the superuser's. function is for the
// message.
const Scope& usable_scope(std::optional<std::string_view> name, const char* function);

// Raises 42710 when the name is taken. Serialised by a lock on the table, kept to the transaction's
// end.
void insert_scope(const NewScope& scope);

void init_scopes();

}  // namespace idem::pg
