// Which failures of an operation are final, and which a retry may cure.
//
// A final failure is the operation's verdict on its request: it is stored, and every retry gets it.
// A transient one says something about the moment: the same request may succeed at another, without
// a change of the operation. In doubt an error is transient: that costs a retry, where a wrong
// verdict lasts as long as the record. Pure; nothing thrown.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "core/sqlstate.hpp"

namespace idem::core {

// Classes, of two characters, and codes, of five. Final are, among those that look similar:
// 42501, which row security and operations raise as a verdict; 0A000, of which "cached plan must
// not change result type" is one among hundreds; 42601, 42710, 42P06 and 42P07, which names out of
// a request cause; 3D000, which no operation meets (a connection to a missing database is 08001);
// 24000, 34000 and 42P18, which are mistakes of the operation; 54001, as a request that recurses
// too deep does so again.
inline constexpr std::array transient_sqlstates = std::to_array<std::string_view>({
    "08",     // connections
    "25",     // the state of the transaction: read-only, aborted, timed out
    "40",     // rollbacks: serialization failures, deadlocks
    "53",     // resources: memory, disk, connections
    "55",     // objects that are locked, in use or not ready
    "57",     // operators: cancellation, shutdown
    "58",     // I/O
    "72",     // snapshot too old
    "XX",     // bugs and damage of the server
    "26000",  // a prepared statement that this session, from a pool, does not have
    "HV00N",  // a foreign server that cannot be reached,
    "HV001",  // or is out of memory
    // A deployment in progress: schema and operation do not fit each other yet, or any more.
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
    // From a claim inside the operation.
    "ID001",  // in_progress
    "ID004",  // lease_lost
    "ID006",  // claim_incomplete
    "ID008",  // unknown_scope: a deployment creates scopes, too
    "ID009",  // limit_exceeded
    "ID012",  // sequence_gap: the messages in between are still to come
});

// Whether the list has the code itself or its class.
constexpr bool lists(std::span<const std::string_view> list, std::string_view sqlstate) noexcept {
    return std::any_of(list.begin(), list.end(), [&](std::string_view entry) {
        return entry == sqlstate || entry == class_of(sqlstate);
    });
}

// sqlstate has five characters.
constexpr bool is_transient(std::string_view sqlstate) noexcept {
    return lists(transient_sqlstates, sqlstate);
}

// What speaks against a SQLSTATE as that of a final failure.
enum class FailureFault {
    none,
    malformed,
    no_failure,  // success, a warning, no data, or a statement that is not complete yet
    ours,        // of class ID, whose codes say what idem found
    transient,   // tells clients to retry
};

constexpr FailureFault failure_fault(std::string_view sqlstate) noexcept {
    if (!is_sqlstate(sqlstate)) return FailureFault::malformed;
    const std::string_view of_class = class_of(sqlstate);
    if (of_class == "00" || of_class == "01" || of_class == "02" || of_class == "03")
        return FailureFault::no_failure;
    if (of_class == "ID") return FailureFault::ours;
    return is_transient(sqlstate) ? FailureFault::transient : FailureFault::none;
}

}  // namespace idem::core
