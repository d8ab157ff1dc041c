#include "core/problem.hpp"

#include <algorithm>
#include <array>

#include "core/sqlstate.hpp"

namespace idem::core {
namespace {

struct Own {
    std::string_view sqlstate;
    Problem problem;
};

constexpr std::array own{
    Own{"ID001", {409, "urn:idem:problem:in_progress", "Operation in progress"}},
    Own{"ID002", {422, "urn:idem:problem:key_conflict", "Key used for a different request"}},
    Own{"ID003", {409, "urn:idem:problem:key_failed", "Operation failed for good"}},
    Own{"ID004", {409, "urn:idem:problem:lease_lost", "Operation taken over by a newer attempt"}},
    Own{"ID005", {409, "urn:idem:problem:not_claimed", "Operation not claimed"}},
    Own{"ID006", {500, "urn:idem:problem:claim_incomplete", "Operation left incomplete"}},
    Own{"ID007", {400, "urn:idem:problem:invalid_key", "Idempotency key missing or invalid"}},
    Own{"ID008", {400, "urn:idem:problem:unknown_scope", "Unknown scope"}},
    Own{"ID009", {429, "urn:idem:problem:limit_exceeded", "Too many operations"}},
    Own{"ID010", {412, "urn:idem:problem:stale_key", "Idempotency key too old"}},
    Own{"ID011", {428, "urn:idem:problem:claim_required", "Idempotency key required"}},
    Own{"ID012", {409, "urn:idem:problem:sequence_gap", "Gap in the sequence"}},
};

// Nothing wrong with the request, and the next try may find the server able: lost connections,
// serialization failures and deadlocks, resources, locks, shutdowns, an old snapshot, a standby
// instead of a primary.
constexpr bool may_pass(std::string_view sqlstate) noexcept {
    constexpr std::array<std::string_view, 7> classes = {"08", "40", "53", "55", "57", "58", "72"};
    return std::ranges::count(classes, class_of(sqlstate)) != 0 || sqlstate == "25006";
}

constexpr Problem plain(int status, std::string_view phrase) noexcept {
    return {status, "about:blank", phrase};
}

}  // namespace

Problem problem_of(std::string_view sqlstate) noexcept {
    const auto* found = std::ranges::find(own, sqlstate, &Own::sqlstate);
    if (found != own.end()) return found->problem;
    if (sqlstate == "00000") return plain(200, "OK");
    if (sqlstate == "42501") return plain(403, "Forbidden");
    if (class_of(sqlstate) == "22") return plain(400, "Bad Request");
    if (may_pass(sqlstate)) return plain(503, "Service Unavailable");
    return plain(500, "Internal Server Error");
}

}  // namespace idem::core
