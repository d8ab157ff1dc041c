// Errors as jsonb objects: what a stored failure is made of, and how it is taken apart again.
//
// The members are sqlstate, message, detail and hint; whatever is missing is left out.
#pragma once

#include "pg/server.hpp"

namespace idem::pg {

Jsonb* error_object(const ErrorData& error);

// A member of a stored error, as a C string; NULL when it is missing, empty or not a string.
char* error_member(Jsonb* error, std::string_view name);

}  // namespace idem::pg
