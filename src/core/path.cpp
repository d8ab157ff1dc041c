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

const char* name_fault(std::string_view name, bool first) noexcept {
    if (first && (name == "$" || name == "lax $" || name == "strict $"))
        return "begins with \"$\", as in JSONPath";
    if (has_any(name, "[]")) return "has a subscript";
    if (has_any(name, "{}")) return "has braces, as in an array of text";
    if (has(name, "->") || has(name, "#>")) return "has an operator";
    if (has(name, "/")) return "has a slash, as in JSON Pointer";
    if (has(name, ",")) return "has a comma, as in a list of paths";
    if (has(name, "\""))
        return "has a double quote that does not enclose the whole name of a member";
    if (name == "*" || name == "**") return "has a wildcard";
    if (is_number(name)) return "has a number in place of a name";
    return name.empty() ? "has an empty name" : nullptr;
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
// Returns the fault that ends the reading; NULL if there is none.
template <class Use>
const char* each_name(std::string_view path, Use use) noexcept {
    for (bool first = true;; first = false) {
        std::size_t end = std::min(path.find('.'), path.size());
        const bool quoted = path.starts_with('"');
        if (quoted) {
            end = end_of_quoted(path);
            if (end == std::string_view::npos || (end < path.size() && path[end] != '.'))
                return name_fault("\"", false);
            use(path.substr(1, end - 2), true);
        } else {
            const std::string_view name = path.substr(0, end);
            if (const char* fault = name_fault(name, first); fault != nullptr) return fault;
            use(name, false);
        }
        if (end == path.size()) return nullptr;
        path.remove_prefix(end + 1);
    }
}

}  // namespace

const char* path_fault(std::string_view path) noexcept {
    return each_name(path, [](std::string_view, bool) {});
}

PathText plain_path(std::string_view path) noexcept {
    PathText plain;
    bool first = true;
    const char* fault = each_name(path, [&](std::string_view name, bool quoted) {
        if (!std::exchange(first, false)) append(plain, ".");
        quoted ? append_unescaped(plain, name) : append(plain, name);
    });
    if (fault == nullptr) return plain;
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

std::optional<PathText> member_path(std::string_view object, std::string_view name) noexcept {
    if (object.size() + name.size() > max_path_bytes) return std::nullopt;
    PathText path;
    append(path, object);
    if (!object.empty()) append(path, ".");
    const bool plain = name_fault(name, object.empty()) == nullptr && !has(name, ".");
    append(path, plain ? name : quoted_name(name).view());
    return path.size <= max_path_bytes ? std::optional(path) : std::nullopt;
}

}  // namespace idem::core
