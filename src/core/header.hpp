// What a stored HTTP header may be: a name that is a token as in RFC 9110, and a value without
// control characters, so that neither can end the header and begin another one.
#pragma once

#include <algorithm>
#include <string_view>

namespace idem::core {

constexpr bool is_header_name(std::string_view name) noexcept {
    return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
        return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
               std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
    });
}

// Bytes from 128 on are left to the server's encoding.
constexpr bool is_header_value(std::string_view value) noexcept {
    return std::none_of(value.begin(), value.end(),
                        [](unsigned char c) { return c < ' ' || c == '\x7f'; });
}

}  // namespace idem::core
