#include "pg/path_list.hpp"

#include "core/path.hpp"
#include "pg/report.hpp"

namespace idem::pg {
namespace {

using core::PathFault;

const char* words_of(PathFault fault) {
    switch (fault) {
        case PathFault::none:
            break;
        case PathFault::root:
            return "begins with \"$\", as in JSONPath";
        case PathFault::slash:
            return "has a slash, as in JSON Pointer";
        case PathFault::arrow:
            return "has an operator";
        case PathFault::bracket:
            return "has a subscript";
        case PathFault::brace:
            return "has braces, as in an array of text";
        case PathFault::comma:
            return "has a comma, as in a list of paths";
        case PathFault::wildcard:
            return "has a wildcard";
        case PathFault::index:
            return "has a number in place of a name";
        case PathFault::quote:
            return "has a double quote that does not enclose the whole name of a member";
        case PathFault::empty_step:
            return "has an empty name";
    }
    pg_unreachable();
}

char* c_string(std::string_view view) {
    return pnstrdup(view.data(), view.size());
}

// How to write what was meant.
const char* advice(std::string_view path, PathFault fault) {
    if (fault == PathFault::comma) return "Pass each path as an element of its own.";
    const core::PathText ours = core::translated_path(path);
    if (ours.size == 0)
        return "Write the names of members from the top, joined by dots, such as \"card.number\".";
    return psprintf("Write %s. The items of an array have no step of their own.",
                    quote_literal_cstr(c_string(ours.view())));
}

// A name of any characters can be written, in quotes.
const char* quoting(std::string_view path) {
    const core::PathText quoted = core::quoted_name(path);
    return psprintf("If a single member has this name, write %s.",
                    quote_literal_cstr(c_string(quoted.view())));
}

void check_notation(const char* name, std::string_view path, int position) {
    const PathFault fault = core::path_fault(path);
    if (fault == PathFault::none) return;
    report::invalid_argument(
        name, psprintf("Element %d, \"%s\", %s.", position, c_string(path), words_of(fault)),
        psprintf("%s %s", advice(path, fault), quoting(path)));
}

}  // namespace

void check_paths(const char* name, ArrayType* paths, Quotes quotes) {
    if (ARR_NDIM(paths) > 1) report::invalid_argument(name, "The array must have one dimension.");
    const TextElements elements = elements_of(paths);
    for (int i = 0; i < elements.count; ++i) {
        const std::string_view path = elements[i];
        if (path.empty() || path.size() > core::max_path_bytes)
            report::invalid_argument(name,
                                     "Each path must have 1 to 255 bytes, such as "
                                     "\"meta.trace_id\".");
        if (quotes == Quotes::enclose) check_notation(name, path, i + 1);
    }
}

PathList read_paths(ArrayType* paths, MemoryContext context, Quotes quotes) {
    if (quotes == Quotes::literal)
        return read_texts(paths, context, [](std::string_view path) { return path; });
    return read_texts(paths, context, [](std::string_view path) { return core::plain_path(path); });
}

}  // namespace idem::pg
