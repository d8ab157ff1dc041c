// Takes any text as a path. Checks that
// - a second reading of the notation finds the same names;
// - a path matches the member that it names, and no other depth;
// - a name in quotes is a path of this name.
#include <optional>
#include <string>
#include <vector>

#include "core/path.hpp"
#include "input.hpp"

using namespace idem::core;

namespace {

// The names of a path, character by character; nothing when a quote is not closed,
// or not by the end of a name.
std::optional<std::vector<std::string>> names_of(std::string_view path) {
    std::vector<std::string> names;
    std::size_t at = 0;
    for (;;) {
        std::string name;
        if (at < path.size() && path[at] == '"') {
            for (++at; at < path.size() && path[at] != '"'; ++at) {
                if (path[at] == '\\' && ++at == path.size()) return std::nullopt;
                name += path[at];
            }
            if (at == path.size()) return std::nullopt;
            if (++at < path.size() && path[at] != '.') return std::nullopt;
        } else {
            while (at < path.size() && path[at] != '.') name += path[at++];
        }
        names.push_back(name);
        if (at == path.size()) return names;
        ++at;
    }
}

std::string joined(const std::vector<std::string>& names) {
    std::string out = names[0];
    for (std::size_t i = 1; i < names.size(); ++i) out += "." + names[i];
    return out;
}

void check_matches(const std::vector<std::string>& names, std::string_view plain) {
    const std::string_view paths[] = {plain};
    PathFilter filter(paths);
    std::string here;
    for (std::size_t i = 0; i < names.size(); ++i) {
        here += (i == 0 ? "" : ".") + names[i];
        filter.begin_object();
        // Names that are as long as the path, and follow nothing but empty names, are equal to it.
        require(filter.excludes(names[i]) == (here == plain));
    }
    require(here == plain);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const char* data, std::size_t size) {
    const std::string_view path = std::string_view(data, size).substr(0, max_path_bytes);

    const auto names = names_of(path);
    const PathText plain = plain_path(path);
    require(plain.view() == (names ? joined(*names) : path));
    if (names && names->size() <= max_path_bytes / 2) check_matches(*names, plain);

    const PathText quoted = quoted_name(path);
    require(plain_path(quoted).view() == path);
    return 0;
}
