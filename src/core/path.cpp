#include "core/path.hpp"

#include <algorithm>
#include <utility>

namespace idem::core {
namespace {

void append(PathText& text, std::string_view piece) noexcept {
    if (piece.size() > text.bytes.size() - text.size) return;
    std::copy(piece.begin(), piece.end(),
              text.bytes.begin() + static_cast<std::ptrdiff_t>(text.size));
    text.size += piece.size();
}

bool has(std::string_view text, std::string_view piece) noexcept {
    return text.find(piece) != std::string_view::npos;
}

bool has_any(std::string_view text, std::string_view characters) noexcept {
    return text.find_first_of(characters) != std::string_view::npos;
}

bool is_number(std::string_view name) noexcept {
    if (name.starts_with('-')) name.remove_prefix(1);
    return !name.empty() &&
           std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool is_wildcard(std::string_view name) noexcept {
    return name == "*" || name == "**";
}

bool is_root(std::string_view name) noexcept {
    return name == "$" || name == "lax $" || name == "strict $";
}

PathFault name_fault(std::string_view name, bool first) noexcept {
    if (first && is_root(name)) return PathFault::root;
    if (has_any(name, "[]")) return PathFault::bracket;
    if (has_any(name, "{}")) return PathFault::brace;
    if (has(name, "->") || has(name, "#>")) return PathFault::arrow;
    if (has(name, "/")) return PathFault::slash;
    if (has(name, ",")) return PathFault::comma;
    if (has(name, "\"")) return PathFault::quote;
    if (is_wildcard(name)) return PathFault::wildcard;
    if (is_number(name)) return PathFault::index;
    return name.empty() ? PathFault::empty_step : PathFault::none;
}

// The position after the closing quote of the name that begins at position 0, or npos.
std::size_t end_of_quoted(std::string_view text) noexcept {
    for (std::size_t i = 1; i < text.size(); ++i) {
        if (text[i] == '\\')
            ++i;
        else if (text[i] == text[0])
            return i + 1;
    }
    return std::string_view::npos;
}

void append_unescaped(PathText& text, std::string_view quoted) noexcept {
    for (std::size_t i = 0; i < quoted.size(); ++i) {
        if (quoted[i] == '\\' && i + 1 < quoted.size()) ++i;
        append(text, quoted.substr(i, 1));
    }
}

// Calls use(name, quoted) for each name of the path: without its quotes, with its backslashes.
template <class Use>
PathFault each_name(std::string_view path, Use use) noexcept {
    for (bool first = true;; first = false) {
        std::size_t end = std::min(path.find('.'), path.size());
        const bool quoted = path.starts_with('"');
        if (quoted) {
            end = end_of_quoted(path);
            if (end == std::string_view::npos || (end < path.size() && path[end] != '.'))
                return PathFault::quote;
            use(path.substr(1, end - 2), true);
        } else {
            const std::string_view name = path.substr(0, end);
            if (const PathFault fault = name_fault(name, first); fault != PathFault::none)
                return fault;
            use(name, false);
        }
        if (end == path.size()) return PathFault::none;
        path.remove_prefix(end + 1);
    }
}

void append_name(PathText& text, std::string_view name) noexcept {
    if (text.size > 0) append(text, ".");
    const bool plain = name_fault(name, text.size == 0) == PathFault::none && !has(name, ".");
    append(text, plain ? name : quoted_name(name).view());
}

// Without its quotes; the closing one may be missing.
std::string_view trimmed_quotes(std::string_view quoted) noexcept {
    const bool closed = end_of_quoted(quoted) == quoted.size();
    quoted.remove_prefix(1);
    if (closed) quoted.remove_suffix(1);
    return quoted;
}

// Whether the name is another notation's step for items of an array. This one has none.
bool names_items(std::string_view name) noexcept {
    return name.empty() || is_number(name) || is_wildcard(name);
}

// Without the spaces and single quotes that operators and subscripts have around a name.
std::string_view trimmed(std::string_view name) noexcept {
    const auto begin = std::min(name.find_first_not_of(" '"), name.size());
    name.remove_prefix(begin);
    return name.substr(0, name.find_last_not_of(" '") + 1);
}

// Without the root that JSONPath and JSON Pointer begin with.
std::string_view without_root(std::string_view path) noexcept {
    for (const std::string_view mode : {"lax ", "strict "})
        if (path.starts_with(mode)) path.remove_prefix(mode.size());
    const bool root = path == "$" || path.starts_with("$.") || path.starts_with("$[");
    if (root || path.starts_with("#/")) path.remove_prefix(1);
    return path;
}

// Reads a name in a JSON Pointer (RFC 6901), in which ~1 stands for / and ~0 for ~.
PathText pointer_name(std::string_view name) noexcept {
    PathText text;
    for (std::size_t i = 0; i < name.size(); ++i) {
        const std::string_view two = name.substr(i, 2);
        const bool escaped = two == "~0" || two == "~1";
        append(text, two == "~1" ? "/" : name.substr(i, 1));
        if (escaped) ++i;
    }
    return text;
}

}  // namespace

PathFault path_fault(std::string_view path) noexcept {
    return each_name(path, [](std::string_view, bool) {});
}

PathText plain_path(std::string_view path) noexcept {
    PathText plain;
    bool first = true;
    const PathFault fault = each_name(path, [&](std::string_view name, bool quoted) {
        if (!std::exchange(first, false)) append(plain, ".");
        quoted ? append_unescaped(plain, name) : append(plain, name);
    });
    if (fault == PathFault::none) return plain;
    PathText literal;
    append(literal, path);
    return literal;
}

PathText quoted_name(std::string_view name) noexcept {
    PathText text;
    append(text, "\"");
    for (std::size_t i = 0; i < name.size(); ++i) {
        if (name[i] == '"' || name[i] == '\\') append(text, "\\");
        append(text, name.substr(i, 1));
    }
    append(text, "\"");
    return text;
}

PathText translated_path(std::string_view path) noexcept {
    PathText ours;
    path = without_root(path);
    const bool pointer = path.starts_with('/');
    while (!path.empty()) {
        if (path.starts_with('"')) {
            const std::size_t end = std::min(end_of_quoted(path), path.size());
            PathText name;
            append_unescaped(name, trimmed_quotes(path.substr(0, end)));
            if (name.size > 0) append_name(ours, name.view());
            path.remove_prefix(end);
            continue;
        }
        // Up to any character that separates names in one of the notations.
        const std::size_t end = std::min(path.find_first_of("./[]{},>\""), path.size());
        std::string_view name = path.substr(0, end);
        if (path.substr(end).starts_with('>') && (name.ends_with('-') || name.ends_with('#')))
            name.remove_suffix(1);
        name = trimmed(name);
        if (!names_items(name)) append_name(ours, pointer ? pointer_name(name).view() : name);
        const bool at_quote = path.substr(end).starts_with('"');
        path.remove_prefix(std::min(at_quote ? end : end + 1, path.size()));
    }
    return ours;
}

}  // namespace idem::core
