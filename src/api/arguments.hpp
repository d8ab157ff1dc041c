// What every call checks first: where it is allowed, and what its key, tenant, source and scope
// must look like.
#pragma once

#include "pg/store/record.hpp"
#include "pg/store/scope.hpp"

namespace idem::api {

namespace report = pg::report;

// Hints for require_writable(): how to read instead.
inline constexpr const char* read_by_lookup =
    " To read a key's state and answer, use idem.lookup().";
inline constexpr const char* read_by_streams =
    " To read how far a source has come, use the view idem.streams.";

// For functions that write, of this name. Raises 25006 in a read-only transaction or on a standby,
// 25000 in a parallel operation, 42501 in a security-restricted operation, 0A000 if the planner
// calls for an EXPLAIN, and 55000 if the library is older than the SQL objects.
void require_writable(const char* function, const char* reading = "");

// For functions that read what this transaction has claimed. Raises 25000 in a parallel operation.
void require_leader(const char* function);

// Raises 22021 for bytes that are not valid in the database's encoding. SQL passes valid text,
// unless an extension or a cast has let invalid bytes through.
void check_encoding(std::string_view text);

// The checked text in UTF-8, so that digests do not depend on the database's encoding.
std::string_view utf8(std::string_view text);

// Raises ID007 for a key that is missing, empty or too long, and 22021 for invalid bytes. position
// is that of an element of the argument "keys", from 1.
std::string_view checked_key(std::optional<std::string_view> key, int position = 0);

// The text of a key of this type: a text or another string, or a uuid. Raises 22023 for others. The
// functions declare their key as anycompatible, so that a uuid needs no cast, and what has no type
// is a text.
text* key_text(Datum key, Oid type, const char* argument = "key");

// NULL means the tenant of the setting idem.tenant; '' means no tenant.
std::string_view checked_tenant(std::optional<std::string_view> tenant);

// The tenant that the call is for: the checked one or, in a scope that takes the tenant from the
// role, the caller's role. Raises 42501 there for another tenant, unless the caller has the
// privileges of the role of that name. In a scope that takes it from the role, it is never empty.
std::string_view tenant_in(const pg::Scope& scope, std::string_view tenant);

// An argument that has a default: NULL is an error.
bool switch_arg(FunctionCallInfo fcinfo, int n, const char* name);

// Raises ID013 if the scope requires a tenant and this one is empty. A rule for new keys: only for
// a key that has no record.
void require_tenant(const pg::Scope& scope, std::string_view tenant);

pg::Key key_of(const pg::Scope& scope, std::string_view tenant, std::string_view key);

struct KeyCall {
    const pg::Scope* scope;  // that the current user may use
    pg::Key key;
};

// The arguments "scope" and "key" or "source", which come first, and "tenant", which comes after
// the number of a source. Checks first their shape, then the scope, then the caller's permission.
// function is the name for the message.
inline constexpr int arg_scope = 0;
inline constexpr int arg_key = 1;
KeyCall read_key(FunctionCallInfo fcinfo, int arg_tenant, const char* function);
KeyCall read_source(FunctionCallInfo fcinfo, const char* function);

}  // namespace idem::api
