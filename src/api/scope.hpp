// A scope that comes from another server.
#pragma once

#include "pg/scope.hpp"

namespace idem::api {

struct ImportedScope {
    std::int32_t id;
    std::string_view name;
    pg::ScopeRules rules;
};
static_assert(std::is_trivially_destructible_v<ImportedScope>);

// The row of the table idem.scope, with what idem.create_scope() checks, and its errors.
ImportedScope checked_scope(HeapTupleHeader row);

}  // namespace idem::api
