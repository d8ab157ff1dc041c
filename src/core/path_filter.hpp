// Which members of a request the fingerprint leaves out.
//
// A path names members from the top, joined by dots ('sent_at', 'meta.trace_id'); arrays on the way
// are passed through, so 'items.seen_at' leaves it out of every item. The filter follows a walk and
// says for each member whether it is on the list. Pure; allocates and throws nothing: a place more
// than 128 objects deep, or whose path is longer than 255 bytes, is simply not on the list.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string_view>

namespace idem::core {

inline constexpr std::size_t max_path_bytes = 255;

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
