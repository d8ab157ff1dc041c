// Who may administer a scope: whoever has its owner's privileges, so that he may use it, and CREATE
// on schema idem besides. A role that merely uses a scope can neither change its rules nor erase
// its history.
#pragma once

#include "pg/scope.hpp"
#include "pg/server.hpp"

namespace idem::api {

// Raises 42501 without CREATE on schema idem. fcinfo is that of the called function, which lives in
// the schema; function is its name, for the message.
void check_may_create(FunctionCallInfo fcinfo, const char* function);

// Raises ID008 and 42501.
const pg::Scope& administered_scope(FunctionCallInfo fcinfo, std::optional<std::string_view> name,
                                    const char* function);

}  // namespace idem::api
