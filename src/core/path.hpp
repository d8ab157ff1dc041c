// How a path into a jsonb value is written: the names of members, joined by dots.
//
// 'card.number' is the member "number" of the member "card", and of each item where "card" is an
// array: an item has no step of its own. A name that would be taken for another notation is written
// in double quotes, in which \" and \\ stand for " and \: '"a/b".c'. Pure; nothing thrown.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string_view>

namespace idem::core {

inline constexpr std::size_t max_path_bytes = 255;

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

// Which members of a request the fingerprint leaves out.
//
// A path names members from the top, joined by dots ('sent_at', 'meta.trace_id'); arrays on the way
// are passed through, so 'items.seen_at' leaves it out of every item. The filter follows a walk and
// says for each member whether it is on the list. Pure; allocates and throws nothing: a place more
// than 128 objects deep, or whose path is longer than 255 bytes, is simply not on the list.
class PathFilter {
  public:
    explicit constexpr PathFilter(std::span<const std::string_view> paths) noexcept
        : paths_(paths) {}

    // Call on entering and leaving an object.
    void begin_object() noexcept { ++depth_; }
    void end_object() noexcept { --depth_; }

    // Call for each member of the innermost object; true when it is to be left out.
    bool excludes(std::string_view name) noexcept {
        if (paths_.empty() || depth_ > max_depth) return false;
        std::size_t end = ends_[depth_ - 1];
        if (depth_ > 1) end = append(end, ".");
        end = append(end, name);
        if (depth_ < max_depth) ends_[depth_] = end;
        if (end == too_long) return false;
        const std::string_view here(path_.data(), end);
        return std::find(paths_.begin(), paths_.end(), here) != paths_.end();
    }

  private:
    static constexpr std::size_t max_depth = max_path_bytes / 2 + 1;
    static constexpr std::size_t too_long = max_path_bytes + 1;

    std::size_t append(std::size_t end, std::string_view piece) noexcept {
        if (end == too_long || piece.size() > max_path_bytes - end) return too_long;
        std::copy(piece.begin(), piece.end(), path_.begin() + static_cast<std::ptrdiff_t>(end));
        return end + piece.size();
    }

    std::span<const std::string_view> paths_;
    std::size_t depth_ = 0;                      // objects entered
    std::array<std::size_t, max_depth> ends_{};  // where the path of the object at a depth ends
    std::array<char, max_path_bytes> path_{};
};

}  // namespace idem::core
