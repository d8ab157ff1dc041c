// Paths into a jsonb value: how they are written, and which members of a value they match.
//
// A path is the names of members, joined by dots: 'card.number' is the member "number" of the
// member "card". Arrays have no step of their own: where "card" is an array, the path applies to
// each item. A name that looks like another notation is written in double quotes, in which \" and
// \\ stand for " and \: '"a/b".c'.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string_view>

namespace idem::core {

inline constexpr std::size_t max_path_bytes = 255;

// A text of limited length. A piece that does not fit is omitted.
struct PathText {
    std::array<char, 2 * max_path_bytes + 2> bytes{};
    std::size_t size = 0;

    std::string_view view() const noexcept { return {bytes.data(), size}; }
    operator std::string_view() const noexcept { return view(); }
};

// The path as PathFilter compares it, without quotes; unchanged when a quote is not closed, or not
// by the end of a name. idem_internal.path_fault(), which is SQL, refuses paths with faults.
PathText plain_path(std::string_view path) noexcept;

// The name in double quotes: a step that stands for exactly this name.
PathText quoted_name(std::string_view name) noexcept;

// Follows a walk through a jsonb value and says for each member whether its path is on a list.
//
// Paths are given as plain_path() returns them. A member more than 128 objects deep, or whose path
// is longer than 255 bytes, counts as not on the list.
class PathFilter {
  public:
    explicit PathFilter(std::span<const std::string_view> paths) noexcept : paths_(paths) {
        ends_[0] = 0;  // and the rest is written before it is read
    }

    void begin_object() noexcept { ++depth_; }
    void end_object() noexcept { --depth_; }

    // Call this for each member of the innermost object, before entering its value. True when the
    // member's path is on the list.
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
    std::size_t depth_ = 0;                    // number of objects entered
    std::array<std::size_t, max_depth> ends_;  // per depth: the length of the object's path
    std::array<char, max_path_bytes> path_;
};

}  // namespace idem::core
