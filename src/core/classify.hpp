// Which failures of an operation are final, and which a retry may cure.
//
// A final failure is the operation's verdict: it is stored, and every retry gets it. A transient
// one says something about the moment, not about the operation. Pure; nothing thrown.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

#include "core/sqlstate.hpp"

namespace idem::core {

// sqlstate has five characters.
constexpr bool is_transient(std::string_view sqlstate) noexcept {
    // connections, transaction state, rollbacks, resources, locks, operators, I/O, bugs
    constexpr std::array<std::string_view, 8> classes = {"08", "25", "40", "53",
                                                         "55", "57", "58", "XX"};
    // in_progress, lease_lost, claim_incomplete and limit_exceeded, from a claim inside
    constexpr std::array<std::string_view, 4> ours = {"ID001", "ID004", "ID006", "ID009"};
    const auto has = [](const auto& list, std::string_view what) {
        return std::find(list.begin(), list.end(), what) != list.end();
    };
    return has(classes, class_of(sqlstate)) || has(ours, sqlstate);
}

}  // namespace idem::core
