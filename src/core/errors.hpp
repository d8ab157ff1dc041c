// What a SQLSTATE means: idem's own errors, and those of PostgreSQL that a retry may cure.
//
// From here come the codes under which errors are raised (pg/server/report), the verdict on a
// failed operation (idem.execute), and the codes that a stored failure may have (idem.fail). What
// an HTTP client is told stands in sql/functions_http.sql; test/release.pl compares its errors with
// these.
//
// A transient error says something about the moment: the same request may succeed later, without a
// change of the operation. No record ever has such an error as its final failure. Any other may
// become one, if the caller (idem.fail) or the scope (final_sqlstates) says so. In doubt an error
// is transient: that costs a retry, while a wrong verdict lasts as long as the record.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace idem::core {

struct Error {
    std::string_view sqlstate;
    const char* name;
};

inline constexpr std::array own_errors = std::to_array<Error>({
    {"ID001", "in_progress"},
    {"ID002", "key_conflict"},
    {"ID003", "key_failed"},
    {"ID004", "lease_lost"},
    {"ID005", "not_claimed"},
    {"ID006", "claim_incomplete"},
    {"ID007", "invalid_key"},
    {"ID008", "unknown_scope"},
    {"ID009", "limit_exceeded"},
    {"ID010", "stale_key"},
    {"ID011", "claim_required"},
    {"ID012", "sequence_gap"},
    {"ID013", "invalid_tenant"},
    {"ID014", "attempts_exhausted"},
});

// Codes, and classes as two characters. Not transient are, among the errors that look like it:
// 42501, which row security and operations raise as a verdict; 0A000, of which "cached plan must
// not change result type" is one among hundreds; 42601, 42710, 42P06 and 42P07, which names out of
// a request cause; 3D000, which no operation meets (a connection to a missing database is 08001);
// 24000, 34000 and 42P18, which are mistakes of the operation.
inline constexpr std::array transient_errors = std::to_array<std::string_view>({
    "08",     // connections
    "25",     // the state of the transaction: read-only on a standby, aborted, timed out
    "40",     // rollbacks: serialization failures, deadlocks
    "53",     // resources: memory, disk, connections
    "55",     // objects that are locked, in use or not ready
    "57",     // operators: cancellation, shutdown
    "58",     // I/O
    "72",     // snapshot too old
    "XX",     // bugs and damage of the server
    "54001",  // the stack, of which a caller may have used up a part
    "26000",  // a prepared statement that this session of a pool lacks
    "HV00N",  // a foreign server that cannot be reached,
    "HV001",  // or is out of memory
    // A deployment in progress: schema and operation do not fit each other.
    "3F000",  // no such schema
    "42703",  // no such column
    "42704",  // no such type, role, ...
    "42725",  // two versions of a function
    "42804",  // a column, variable or result of another type
    "42809",  // a view in the place of a table, ...
    "42883",  // no such function
    "42P01",  // no such table
    "42P02",  // no such parameter
    "42P10",  // no unique index for ON CONFLICT
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

// Whether a list of codes and classes has the code itself or its class.
constexpr bool lists(std::span<const std::string_view> list, std::string_view sqlstate) noexcept {
    return std::any_of(list.begin(), list.end(), [&](std::string_view entry) {
        return entry == sqlstate || entry == class_of(sqlstate);
    });
}

// By its name, at compile time: a name that is not in the table does not compile.
consteval Error own_error(std::string_view name) {
    return *std::ranges::find(own_errors, name, &Error::name);
}

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
    if (of_class == "ID") return FailureFault::ours;
    return lists(transient_errors, code_or_class) ? FailureFault::transient : FailureFault::none;
}

constexpr FailureFault failure_fault(std::string_view sqlstate) noexcept {
    return is_sqlstate(sqlstate) ? listing_fault(sqlstate) : FailureFault::malformed;
}

constexpr bool is_final(std::span<const std::string_view> list,
                        std::string_view sqlstate) noexcept {
    return failure_fault(sqlstate) == FailureFault::none && lists(list, sqlstate);
}

static_assert(std::ranges::all_of(own_errors, [](const Error& error) {
    return is_sqlstate(error.sqlstate) && error.sqlstate.starts_with("ID") && *error.name != '\0';
}));
static_assert(std::ranges::all_of(transient_errors, [](std::string_view error) {
    return is_sqlstate(error) || is_sqlstate_class(error);
}));

}  // namespace idem::core
