// Failures as they are stored: jsonb objects with the members sqlstate, message, detail and hint,
// each a string that is not empty, or missing.
//
// An error that an operation raised keeps its sqlstate whatever it is, because it says what
// happened. One that a caller makes up must be fit to be raised again.
#pragma once

#include "pg/server/postgres.hpp"

namespace idem::pg {

Jsonb* failure_of(const ErrorData& error);

// What a caller's object is for.
enum class FailureUse : bool {
    answer,  // every retry raises it
    note,    // the last error of an operation that another attempt continues: it is never raised,
             // and may have the SQLSTATE of any error
};
// Raises 22023 with what is expected.
void check_failure(Jsonb* failure, FailureUse use);

// A member as a C string; NULL when it is missing, empty or not a string.
char* failure_member(Jsonb* failure, std::string_view name);

// The failure with its sqlstate as the only member; NULL if it has none that is well-formed. The
// same pointer when it has nothing else.
Jsonb* sqlstate_only(Jsonb* failure);

// Under the failure's own SQLSTATE where that is an error's, else as ID003. cancelled: by
// idem.cancel(), so that the operation has never run.
[[noreturn]] void raise_failure(std::string_view key, Jsonb* failure,
                                std::optional<TimestampTz> since, bool cancelled);

}  // namespace idem::pg
