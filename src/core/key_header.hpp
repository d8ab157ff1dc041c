// The value of an Idempotency-Key header, and the key in it.
//
// The IETF draft asks for an RFC 8941 string: the key in double quotes, in which \" and \\ stand
// for " and \. Parameters after it have no meaning yet: they must be well-formed, and are ignored.
// Many clients send the key without quotes. Such a token is the key itself, if it has none of the
// characters that could mean something else: blanks, commas (which join several headers),
// semicolons and double quotes.
//
// Pure functions; no allocation, no exceptions.
#pragma once

#include "core/key.hpp"

namespace idem::core {

enum class HeaderFault : std::uint8_t {
    none,
    token_character,   // not allowed in a token
    string_character,  // not printable ASCII
    escape,            // a backslash before anything but " and backslash
    open_string,       // the closing quote is missing
    after_string,      // neither the end nor a semicolon follows the string
    parameter,         // a malformed parameter
};

struct KeyHeader {
    HeaderFault fault = HeaderFault::none;
    std::size_t position = 0;  // of the fault: as many bytes come before it
    bool sent = false;         // false for an empty header
    std::size_t key_size = 0;  // may be too long for a key, or 0 for the empty string
    std::array<char, max_key_bytes> key_bytes{};

    // Of a header without a fault, whose key is not too long.
    std::string_view key() const noexcept { return {key_bytes.data(), key_size}; }
};

KeyHeader read_key_header(std::string_view header) noexcept;

}  // namespace idem::core
