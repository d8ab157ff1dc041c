// The order of version numbers such as 1.0.0-rc2: numbers count as numbers, and what follows a
// hyphen comes before the release.
#pragma once

#include <algorithm>
#include <compare>
#include <string_view>

namespace idem::core {

// Takes the digits off the front; without leading zeros, so that longer is larger.
constexpr std::string_view take_number(std::string_view& text) noexcept {
    const auto end = std::min(text.find_first_not_of("0123456789"), text.size());
    std::string_view number = text.substr(0, end);
    text.remove_prefix(end);
    number.remove_prefix(std::min(number.find_first_not_of('0'), number.size()));
    return number;
}

constexpr std::strong_ordering compare_versions(std::string_view a, std::string_view b) noexcept {
    // "1.0-rc1" < "1.0" < "1.0.1"
    const auto rank = [](std::string_view rest) {
        if (rest.empty()) return 1;
        return rest[0] == '-' ? 0 : 2 + static_cast<unsigned char>(rest[0]);
    };
    for (;;) {
        const std::string_view m = take_number(a);
        const std::string_view n = take_number(b);
        if (m.size() != n.size()) return m.size() <=> n.size();
        if (const auto order = m <=> n; std::is_neq(order)) return order;
        if (rank(a) != rank(b)) return rank(a) <=> rank(b);
        if (a.empty()) return std::strong_ordering::equal;
        a.remove_prefix(1);
        b.remove_prefix(1);
    }
}

}  // namespace idem::core
