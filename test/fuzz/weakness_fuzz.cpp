// Takes any text as a key. Checks its weakness against regular expressions for the same rules.
#include <algorithm>
#include <cctype>
#include <regex>
#include <set>
#include <string>

#include "core/key.hpp"
#include "input.hpp"

using namespace idem::core;

namespace {

constexpr int longest_word = 15;  // "xidempotencykey"

bool matches(const std::string& key, const std::regex& expression) {
    return std::regex_match(key, expression);
}

bool is_epoch(const std::string& key) {
    static const std::regex epoch(R"(([1-9][0-9]{9})([0-9]{3}){0,3}([.][0-9]+)?)");
    return matches(key, epoch) && key.substr(0, 10) < "4102444800";
}

bool is_iso(const std::string& key) {
    static const std::regex iso(
        "(19|20|21)[0-9]{2}"
        "(-(0[1-9]|1[0-2])-|(0[1-9]|1[0-2]))"
        "(0[1-9]|[12][0-9]|3[01])"
        "([Tt ]?([01][0-9]|2[0-4]):?[0-5][0-9](:?([0-5][0-9]|60)([.,][0-9]+)?)?"
        "([Zz]|[+-](0[0-9]|1[0-5])(:?[0-5][0-9])?)?)?");
    return matches(key, iso);
}

// But for the words of the list.
bool is_generic(const std::string& key) {
    static const std::regex missing(
        "([\\s\\S]*[-_:/.#])?(undefined|null|None)([-_:/.#][\\s\\S]*)?");
    static const std::regex parameter("[{][{][\\s\\S]*[}][}]|[$][{][\\s\\S]*[}]|<[\\s\\S]*>");
    static const std::regex uuid(
        "[^A-Za-z0-9\x80-\xff]*(0[^A-Za-z0-9\x80-\xff]*){32}|"
        "[^A-Za-z0-9\x80-\xff]*([fF][^A-Za-z0-9\x80-\xff]*){32}");
    return matches(key, missing) || matches(key, parameter) || matches(key, uuid);
}

std::string_view expected(const std::string& key) {
    static const std::regex counter("0*[0-9]{0,19}");
    static const std::regex named("[A-Za-z\x80-\xff]+[-_:/.#]?[0-9]+");
    if (is_generic(key)) return "generic";
    if (is_epoch(key) || is_iso(key)) return "timestamp";
    if (!key.empty() && matches(key, counter)) return "number";
    if (key.size() < 8) return matches(key, named) ? "" : "short";
    const std::size_t different = std::set<char>(key.begin(), key.end()).size();
    return different <= 2 || different * 8 < key.size() ? "repetitive" : "";
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const char* data, std::size_t size) {
    const std::string key(data, size < max_key_bytes ? size : max_key_bytes);
    const std::string_view found = weakness(key);
    if (found == expected(key)) return 0;
    const auto is_alphanumeric = [](unsigned char c) { return c < 128 && std::isalnum(c) != 0; };
    require(found == "generic" &&
            std::count_if(key.begin(), key.end(), is_alphanumeric) <= longest_word);
    return 0;
}
