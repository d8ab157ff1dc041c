// The shape of a SQLSTATE: five characters, the first two of which are its class.
//
// Pure functions; no allocation, nothing thrown.
#pragma once

#include <algorithm>
#include <string_view>

namespace idem::core {

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

}  // namespace idem::core
