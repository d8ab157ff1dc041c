// A key that was used for another request: what differs, and how the caller and the log learn it.
//
// The fingerprints alone decide that requests differ. The stored request, if the record has one,
// says in what: callers see names of members, never values of the first request.
#pragma once

#include "pg/store/record.hpp"
#include "pg/store/scope.hpp"

namespace idem::api {

struct Conflict {
    const char* detail = nullptr;   // of the error
    const char* account = nullptr;  // what follows "a different request" in the log
    const char* hint = nullptr;
    ArrayType* differs = nullptr;  // the paths of the members that differ; NULL: not known
};

// The conflict of a claim with the record. The clock was read when the record was.
Conflict explain_conflict(const pg::Scope& scope, Jsonb* request, const pg::Record& record,
                          TimestampTz now);

[[noreturn]] void refuse_conflict(std::string_view key, const Conflict& conflict);
// The same, at the level of idem.log_conflicts, which is below ERROR.
void log_conflict(const pg::Scope& scope, const pg::Key& key, const Conflict& conflict);

}  // namespace idem::api
