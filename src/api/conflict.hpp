// A key that was used for another request: what differs, and how the caller and the log learn it.
//
// The fingerprints alone decide that requests differ. The stored request, if the record has one,
// says in what: callers see names of members, never values of the first request.
#pragma once

#include "pg/document.hpp"
#include "pg/record.hpp"
#include "pg/scope.hpp"

namespace idem::api {

struct Conflict {
    const char* detail = nullptr;   // of the error; NULL: the requests differ
    const char* account = nullptr;  // what follows "a different request" in the log; likewise
    const char* hint = nullptr;
    const char* advice = "";                       // what follows the hint
    const pg::Differences* differences = nullptr;  // NULL: not known
};

// The conflict of a claim with the record. The clock was read when the record was.
Conflict explain_conflict(const pg::Scope& scope, Jsonb* request, const pg::Record& record,
                          TimestampTz now);

// The paths of the members that differ, as text[]; NULL if none is known.
ArrayType* differing_members(const Conflict& conflict);

// Raises ID002.
[[noreturn]] void refuse_conflict(std::string_view key, const Conflict& conflict);
// The same, at the level of idem.log_conflicts, which is below ERROR.
void log_conflict(const pg::Scope& scope, const pg::KeyName& name, const Conflict& conflict);

}  // namespace idem::api
