#include "core/path.hpp"

namespace idem::core {
namespace {

void append(PathText& text, std::string_view piece) noexcept {
    if (piece.size() > text.bytes.size() - text.size) return;
    std::copy(piece.begin(), piece.end(),
              text.bytes.begin() + static_cast<std::ptrdiff_t>(text.size));
    text.size += piece.size();
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

}  // namespace

PathText plain_path(std::string_view path) noexcept {
    PathText plain;
    for (std::string_view rest = path;;) {
        std::size_t end = std::min(rest.find('.'), rest.size());
        if (rest.starts_with('"')) {
            end = end_of_quoted(rest);
            if (end == std::string_view::npos || (end < rest.size() && rest[end] != '.')) break;
            for (std::size_t i = 1; i + 1 < end; ++i) {
                if (rest[i] == '\\') ++i;
                append(plain, rest.substr(i, 1));
            }
        } else {
            append(plain, rest.substr(0, end));
        }
        if (end == rest.size()) return plain;
        append(plain, ".");
        rest.remove_prefix(end + 1);
    }
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

}  // namespace idem::core
