// How a path into a jsonb value is written: the names of members, joined by dots.
//
// 'card.number' is the member "number" of the member "card", and of each item where "card" is an
// array: an item has no step of its own. A name that would be taken for another notation is written
// in double quotes, in which \" and \\ stand for " and \: '"a/b".c'. Pure; nothing thrown.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "core/path_filter.hpp"

namespace idem::core {

// What speaks against a path: each is what others write where this notation has something else.
enum class PathFault {
    none,
    root,        // $ or $.card: JSONPath
    slash,       // /card/number: JSON Pointer
    arrow,       // card->number, card#>number: operators
    bracket,     // card[0]: a subscript
    brace,       // {card,number}: an array of text
    comma,       // card,number: several paths in one
    wildcard,    // items.*.token
    index,       // items.0.token
    quote,       // a double quote that is not closed, or does not enclose the whole name
    empty_step,  // .card, card..number
};

PathFault path_fault(std::string_view path) noexcept;

// Text of a bounded length. What does not fit is left out.
struct PathText {
    std::array<char, 2 * max_path_bytes + 2> bytes{};
    std::size_t size = 0;

    std::string_view view() const noexcept { return {bytes.data(), size}; }
    operator std::string_view() const noexcept { return view(); }
};

// The path as the filter compares it, without quotes; as it is, if it has a fault.
PathText plain_path(std::string_view path) noexcept;

// What a path with a fault means in the notation that it is written in, put into ours; empty when
// it names no member.
PathText translated_path(std::string_view path) noexcept;

// The path for a single member of just this name.
PathText quoted_name(std::string_view name) noexcept;

}  // namespace idem::core
