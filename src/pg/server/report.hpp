// The parts that messages of idem's own are made of, and the messages that several files raise. A
// message that one file raises stands in that file.
//
// Every error has a SQLSTATE, from core/errors.hpp or the server's, a detail, and a hint that says
// what to do in the reader's situation. No message shows a key, a response or a request other than
// the caller's own. Functions that are [[noreturn]] raise an error; the others report at a lower
// level.
#pragma once

#include "core/errors.hpp"
#include "pg/server/holder.hpp"

namespace idem::pg::report {

// ---- Parts of a message -------------------------------------------------------------------------

constexpr int errcode_of(std::string_view sqlstate) {
    return MAKE_SQLSTATE(sqlstate[0], sqlstate[1], sqlstate[2], sqlstate[3], sqlstate[4]);
}

// One of idem's own errors, by its name in core/errors.hpp.
struct OwnError : core::Error {
    consteval OwnError(const char* own_name) : Error(core::own_error(own_name)) {}
};
// An auxiliary function of ereport(), as errcode() is: the SQLSTATE, and the name in a field of the
// protocol, so that no program has to parse English (docs/reference.md, "Errors").
int own_error(OwnError error);

// Likewise, fields of the protocol: when to retry, and since when an operation has been under way.
int errretry(std::int64_t retry_after);
int errsince(std::optional<TimestampTz> since);

// For a hint. Clients whose driver hides the fields look for "after N.N seconds".
double seconds_of(std::int64_t retry_after);

// A copy that ends with a NUL, in the current memory context: for %s, and for what takes a name.
char* c_string(std::string_view view);

// ---- Messages that several files raise ----------------------------------------------------------

// Another one: code, fields, message and detail of an error about a key in flight.
int errin_progress(std::string_view key, const Holder& holder, std::int64_t retry_after);

// Where the bound of a wait is set: by an argument of the call, by the scope only, or by the time
// that the statement has.
enum class WaitSetBy : std::uint8_t { argument, scope, statement_timeout };

[[noreturn]] void in_progress(std::string_view key, const Holder& holder, std::int64_t retry_after,
                              WaitSetBy wait);
// hint: NULL for idem.claim().
[[noreturn]] void claimed_by_this_transaction(std::string_view key, const char* hint = nullptr);

// Reports at the level of idem.log_transitions, if that is set, what has become of an operation,
// other than that it starts and is completed or released.
void log_transition(const char* what, std::string_view scope, std::string_view tenant,
                    std::string_view key, std::int32_t attempt);

[[noreturn]] void serialization_failure(const char* detail);

// The token names no open claim (ID005).
[[noreturn]] void not_claimed(const char* detail, const char* hint);

[[noreturn]] void digest_collision();

enum class Creatable : bool { no, yes };  // yes: the call would succeed if the scope existed

// nearest: a scope of the caller's with a similar name, or NULL. detail: where the name stands,
// NULL for an argument.
[[noreturn]] void unknown_scope(std::string_view name, const char* nearest, const char* detail,
                                Creatable creatable);

// An argument that has no default is NULL.
[[noreturn]] void missing_argument(const char* name);
// An argument that has a default is NULL.
[[noreturn]] void null_argument(const char* name);
[[noreturn]] void invalid_argument(const char* name, const char* detail, const char* hint);

[[noreturn]] void crypto_failure();

}  // namespace idem::pg::report
