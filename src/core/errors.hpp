// What a SQLSTATE means: the one table of idem's own errors, and of those of PostgreSQL that idem
// tells apart.
//
// Everything else that says something about an error derives from it: the codes under which errors
// are raised (pg/report), the verdict on a failed operation (idem.execute), the codes that a stored
// failure may have (idem.fail), and what an HTTP client is told (idem.http_status, idem.problem).
//
// Retry::may_cure marks a transient error. It says something about the moment: the same request may
// succeed later, without a change of the operation. No record ever has such an error as its final
// failure. Any other may become one, if the caller (idem.fail) or the scope (final_sqlstates) says
// so. In doubt an error is transient: that costs a retry, while a wrong verdict lasts as long as
// the record.
//
// Pure functions; no allocation, nothing thrown.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace idem::core {

enum class Retry : std::uint8_t { futile, may_cure };

// The name is part of the error's type in RFC 9457, a URI that never changes. PostgreSQL's errors
// have no name here; their title is HTTP's phrase for the status.
struct Error {
    std::string_view sqlstate;
    std::string_view name;
    int http_status;
    std::string_view title;
    Retry retry;
};

// test/release.pl reads this table and the next, and compares the documentation with them.
inline constexpr std::array own_errors = std::to_array<Error>({
    {"ID001", "in_progress", 409, "Operation in progress", Retry::may_cure},
    {"ID002", "key_conflict", 422, "Key used for a different request", Retry::futile},
    {"ID003", "key_failed", 409, "Operation failed permanently", Retry::futile},
    {"ID004", "lease_lost", 409, "Operation taken over by a newer attempt", Retry::may_cure},
    {"ID005", "not_claimed", 409, "Operation not claimed", Retry::futile},
    {"ID006", "claim_incomplete", 500, "Operation left incomplete", Retry::may_cure},
    {"ID007", "invalid_key", 400, "Idempotency key missing or invalid", Retry::futile},
    // The server's own code names the scope, not its client; and a deployment creates scopes, too.
    {"ID008", "unknown_scope", 500, "Unknown scope", Retry::may_cure},
    {"ID009", "limit_exceeded", 429, "Too many operations", Retry::may_cure},
    {"ID010", "stale_key", 412, "Idempotency key too old", Retry::futile},
    {"ID011", "claim_required", 428, "Idempotency key required", Retry::futile},
    // The messages in between are still to come.
    {"ID012", "sequence_gap", 409, "Gap in the sequence", Retry::may_cure},
    // The service passes the tenant, not its client; another session of its pool may have set it.
    {"ID013", "invalid_tenant", 500, "Tenant missing or invalid", Retry::may_cure},
});

// A code of five characters, or a class of two. A code comes before its class.
struct ServerError {
    std::string_view sqlstate;
    int http_status;
    Retry retry;
};

// What is not listed is 500 and may be final. That includes, among the errors that look transient:
// 42501, which row security and operations raise as a verdict; 0A000, of which "cached plan must
// not change result type" is one among hundreds; 42601, 42710, 42P06 and 42P07, which names out of
// a request cause; 3D000, which no operation meets (a connection to a missing database is 08001);
// 24000, 34000 and 42P18, which are mistakes of the operation.
inline constexpr std::array server_errors = std::to_array<ServerError>({
    {"00000", 200, Retry::futile},
    {"22", 400, Retry::futile},     // data, such as a malformed argument
    {"42501", 403, Retry::futile},  // privileges
    // The server may be able to do it at the next try.
    {"08", 503, Retry::may_cure},     // connections
    {"25006", 503, Retry::may_cure},  // read-only: a standby instead of a primary
    {"40", 503, Retry::may_cure},     // rollbacks: serialization failures, deadlocks
    {"53", 503, Retry::may_cure},     // resources: memory, disk, connections
    {"55", 503, Retry::may_cure},     // objects that are locked, in use or not ready
    {"57", 503, Retry::may_cure},     // operators: cancellation, shutdown
    {"58", 503, Retry::may_cure},     // I/O
    {"72", 503, Retry::may_cure},     // snapshot too old
    // So may it here, but an operator should know.
    {"25", 500, Retry::may_cure},     // the state of the transaction: aborted, timed out
    {"XX", 500, Retry::may_cure},     // bugs and damage of the server
    {"54001", 500, Retry::may_cure},  // the stack, of which a caller may have used up a part
    {"26000", 500, Retry::may_cure},  // a prepared statement that this session of a pool lacks
    {"HV00N", 500, Retry::may_cure},  // a foreign server that cannot be reached,
    {"HV001", 500, Retry::may_cure},  // or is out of memory
    // A deployment in progress: schema and operation do not fit each other.
    {"3F000", 500, Retry::may_cure},  // no such schema
    {"42703", 500, Retry::may_cure},  // no such column
    {"42704", 500, Retry::may_cure},  // no such type, role, ...
    {"42725", 500, Retry::may_cure},  // two versions of a function
    {"42804", 500, Retry::may_cure},  // a column, variable or result of another type
    {"42809", 500, Retry::may_cure},  // a view in the place of a table, ...
    {"42883", 500, Retry::may_cure},  // no such function
    {"42P01", 500, Retry::may_cure},  // no such table
    {"42P02", 500, Retry::may_cure},  // no such parameter
    {"42P10", 500, Retry::may_cure},  // no unique index for ON CONFLICT
});

// The shape of a SQLSTATE: five characters, of which the first two are its class.
constexpr bool has_sqlstate_characters(std::string_view text) noexcept {
    const auto fits = [](char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z'); };
    return std::all_of(text.begin(), text.end(), fits);
}

constexpr bool is_sqlstate(std::string_view text) noexcept {
    return text.size() == 5 && has_sqlstate_characters(text);
}

constexpr bool is_sqlstate_class(std::string_view text) noexcept {
    return text.size() == 2 && has_sqlstate_characters(text);
}

constexpr std::string_view class_of(std::string_view sqlstate) noexcept {
    return sqlstate.substr(0, 2);
}

constexpr bool is_ours(std::string_view sqlstate) noexcept {
    return class_of(sqlstate) == "ID";
}

constexpr std::string_view http_phrase(int status) noexcept {
    switch (status) {
        case 200:
            return "OK";
        case 400:
            return "Bad Request";
        case 403:
            return "Forbidden";
        case 503:
            return "Service Unavailable";
        default:
            return "Internal Server Error";
    }
}

// The argument must be a SQLSTATE by its shape.
constexpr Error error_of(std::string_view sqlstate) noexcept {
    const auto* const own = std::ranges::find(own_errors, sqlstate, &Error::sqlstate);
    if (own != own_errors.end()) return *own;
    const auto* found = std::ranges::find(server_errors, sqlstate, &ServerError::sqlstate);
    if (found == server_errors.end())
        found = std::ranges::find(server_errors, class_of(sqlstate), &ServerError::sqlstate);
    if (found == server_errors.end()) return {sqlstate, "", 500, http_phrase(500), Retry::futile};
    return {sqlstate, "", found->http_status, http_phrase(found->http_status), found->retry};
}

constexpr bool is_transient(std::string_view sqlstate) noexcept {
    return error_of(sqlstate).retry == Retry::may_cure;
}

// By its name, at compile time: a name that is not in the table does not compile.
consteval Error own_error(std::string_view name) {
    return *std::ranges::find(own_errors, name, &Error::name);
}

// Whether a list of codes and classes has the code itself or its class.
constexpr bool lists(std::span<const std::string_view> list, std::string_view sqlstate) noexcept {
    return std::any_of(list.begin(), list.end(), [&](std::string_view entry) {
        return entry == sqlstate || entry == class_of(sqlstate);
    });
}

// Why a SQLSTATE cannot be that of a final failure.
enum class FailureFault : std::uint8_t {
    none,
    malformed,
    no_failure,  // success, a warning, no data, or a statement that is not complete yet
    ours,        // of class ID, whose codes say what idem found
    transient,   // tells clients to retry
};

// The same for a class, of which only the codes without a fault of their own can be.
constexpr FailureFault listing_fault(std::string_view code_or_class) noexcept {
    if (!is_sqlstate(code_or_class) && !is_sqlstate_class(code_or_class))
        return FailureFault::malformed;
    const std::string_view of_class = class_of(code_or_class);
    if (of_class == "00" || of_class == "01" || of_class == "02" || of_class == "03")
        return FailureFault::no_failure;
    if (is_ours(code_or_class)) return FailureFault::ours;
    return is_transient(code_or_class) ? FailureFault::transient : FailureFault::none;
}

constexpr FailureFault failure_fault(std::string_view sqlstate) noexcept {
    return is_sqlstate(sqlstate) ? listing_fault(sqlstate) : FailureFault::malformed;
}

// Whether an error is a final failure by a list of codes and classes.
constexpr bool is_final(std::span<const std::string_view> list,
                        std::string_view sqlstate) noexcept {
    return failure_fault(sqlstate) == FailureFault::none && lists(list, sqlstate);
}

static_assert(std::ranges::all_of(own_errors, [](const Error& error) {
    return is_sqlstate(error.sqlstate) && is_ours(error.sqlstate) && !error.name.empty();
}));
static_assert(std::ranges::all_of(server_errors, [](const ServerError& error) {
    return is_sqlstate(error.sqlstate) || is_sqlstate_class(error.sqlstate);
}));

}  // namespace idem::core
