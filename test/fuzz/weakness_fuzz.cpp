// Takes any text as a key. Checks its weakness against regular expressions for the same rules.
#include <regex>
#include <set>
#include <string>

#include "core/key.hpp"
#include "core/weakness.hpp"
#include "input.hpp"

using namespace idem::core;

namespace {

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

Weakness expected(const std::string& key) {
    static const std::regex counter("0*[0-9]{0,19}");
    static const std::regex named("[A-Za-z\x80-\xff]{2,}[-_:/.#][0-9]+");
    if (is_epoch(key) || is_iso(key)) return Weakness::timestamp;
    if (!key.empty() && matches(key, counter)) return Weakness::number;
    if (key.size() < 8) return matches(key, named) ? Weakness::none : Weakness::too_short;
    const std::size_t different = std::set<char>(key.begin(), key.end()).size();
    return different <= 2 || different * 8 < key.size() ? Weakness::repetitive : Weakness::none;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const char* data, std::size_t size) {
    const std::string key(data, size < max_key_bytes ? size : max_key_bytes);
    require(weakness(key) == expected(key));
    return 0;
}
