// Reads any text as an Idempotency-Key header, and compares with a second implementation, which
// takes the header apart from its end.
#include <algorithm>
#include <optional>
#include <string>

#include "core/key_header.hpp"
#include "input.hpp"

using namespace idem::core;

namespace {

bool visible(char c) {
    return c > ' ' && c < '\x7f';
}

std::string_view without_blanks(std::string_view text) {
    while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
    while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
    return text;
}

// The contents of a text that is exactly one string.
std::optional<std::string> string_in(std::string_view text) {
    if (text.size() < 2 || text.front() != '"' || text.back() != '"') return std::nullopt;
    std::string key;
    for (std::size_t i = 1; i + 1 < text.size(); ++i) {
        if (!visible(text[i]) && text[i] != ' ') return std::nullopt;
        if (text[i] == '"') return std::nullopt;
        if (text[i] == '\\') {
            ++i;
            if (i + 1 == text.size() || (text[i] != '"' && text[i] != '\\')) return std::nullopt;
        }
        key += text[i];
    }
    return key;
}

bool all_of(std::string_view text, std::string_view more, bool upper = true) {
    return std::all_of(text.begin(), text.end(), [&](char c) {
        return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
               (upper && c >= 'A' && c <= 'Z') || more.find(c) != std::string_view::npos;
    });
}

bool is_digits(std::string_view text, std::size_t most) {
    return !text.empty() && text.size() <= most &&
           text.find_first_not_of("0123456789") == std::string_view::npos;
}

bool is_value(std::string_view text) {
    if (text.empty()) return false;
    if (string_in(text) || text == "?0" || text == "?1") return true;
    if (text.front() == ':')
        return text.size() >= 2 && text.back() == ':' &&
               all_of(text.substr(1, text.size() - 2), "+/=");
    const bool letter = all_of(text.substr(0, 1), "*") && !is_digits(text.substr(0, 1), 1);
    if (letter) return all_of(text, "!#$%&'*+-.^_`|~:/");
    if (text.front() == '-') text.remove_prefix(1);
    const std::size_t point = text.find('.');
    if (point == std::string_view::npos) return is_digits(text, 15);
    return is_digits(text.substr(0, point), 12) && is_digits(text.substr(point + 1), 3);
}

// What stands between two semicolons.
bool is_parameter(std::string_view text) {
    while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
    const std::string_view name = text.substr(0, text.find('='));
    if (name.empty() || !all_of(name, "_-.*", false)) return false;
    if (!all_of(name.substr(0, 1), "*", false) || is_digits(name.substr(0, 1), 1)) return false;
    return name.size() == text.size() || is_value(text.substr(name.size() + 1));
}

// A string of a parameter may contain semicolons, so every one of them may be the last.
std::optional<std::string> quoted_key(std::string_view text) {
    if (auto key = string_in(text)) return key;
    for (std::size_t at = text.rfind(';'); at != std::string_view::npos && at > 0;
         at = text.rfind(';', at - 1))
        if (is_parameter(text.substr(at + 1))) return quoted_key(text.substr(0, at));
    return std::nullopt;
}

std::optional<std::string> expected_key(std::string_view text) {
    if (text.front() == '"') return quoted_key(text);
    const bool fits = std::all_of(text.begin(), text.end(), [](char c) {
        return visible(c) && c != '"' && c != ',' && c != ';';
    });
    return fits ? std::optional(std::string(text)) : std::nullopt;
}

void check(std::string_view header) {
    const KeyHeader read = read_key_header(header);
    const std::string_view text = without_blanks(header);
    require(read.sent == !text.empty());
    require(read.position <= header.size());
    if (!read.sent) return;
    const auto expected = expected_key(text);
    require((read.fault == HeaderFault::none) == expected.has_value());
    if (!expected) return;
    require(read.key_size == expected->size());
    if (read.key_size <= max_key_bytes) require(read.key() == *expected);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const char* data, std::size_t size) {
    const std::string_view text(data, size);
    check(text);

    // A key in quotes, with the rest of the input after it.
    Input input(text);
    std::string header = "\"";
    for (const char c : input.text(input.byte())) {
        if (c == '"' || c == '\\') header += '\\';
        if (visible(c)) header += c;
    }
    header += '"';
    check(header);
    header += ";" + std::string(input.rest());
    check(header);
    return 0;
}
