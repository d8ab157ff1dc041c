// Errors as jsonb objects: what a stored failure is made of, and how it is taken apart again.
//
// The members are sqlstate, message, detail and hint, each a string that is not empty; whatever is
// missing is left out. An error of an operation keeps its sqlstate whatever it is, as it tells what
// happened; one that a caller makes up must be fit to be raised again under it.
#pragma once

#include "pg/server.hpp"

namespace idem::pg {

Jsonb* error_object(const ErrorData& error);

// Both raise 22023 with what is expected. The first asks for an object only, as releases before
// 0.3.0 did: what else is in it may be lost when it is raised.
void check_is_error_object(Jsonb* error);
void check_error_object(Jsonb* error);

// A member of a stored error, as a C string; NULL when it is missing, empty or not a string.
char* error_member(Jsonb* error, std::string_view name);

}  // namespace idem::pg
