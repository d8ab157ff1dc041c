#include "pg/path_list.hpp"

#include "core/path_filter.hpp"
#include "pg/boundary.hpp"
#include "pg/report.hpp"

namespace idem::pg {
namespace {

struct Elements {
    Datum* values;
    bool* nulls;
    int count;
};

Elements elements_of(ArrayType* paths) {
    Elements elements;
    deconstruct_array(paths, TEXTOID, -1, false, TYPALIGN_INT, &elements.values, &elements.nulls,
                      &elements.count);
    return elements;
}

std::string_view path_of(const Elements& elements, int i) {
    if (elements.nulls[i]) return {};
    return view_of(DatumGetTextPP(elements.values[i]));
}

}  // namespace

void check_paths(const char* name, ArrayType* paths) {
    if (ARR_NDIM(paths) > 1) report::invalid_argument(name, "It must have one dimension.");
    const Elements elements = elements_of(paths);
    for (int i = 0; i < elements.count; ++i) {
        const std::string_view path = path_of(elements, i);
        if (path.empty() || path.size() > core::max_path_bytes)
            report::invalid_argument(name,
                                     "Each path must have 1 to 255 bytes, such as "
                                     "\"meta.trace_id\".");
    }
}

PathList read_paths(ArrayType* paths, MemoryContext context) {
    const Elements elements = elements_of(paths);
    const auto count = static_cast<std::size_t>(elements.count);
    auto* views = static_cast<std::string_view*>(
        MemoryContextAlloc(context, sizeof(std::string_view) * (count + 1)));
    for (int i = 0; i < elements.count; ++i) {
        const std::string_view path = path_of(elements, i);
        char* copy = static_cast<char*>(MemoryContextAlloc(context, path.size() + 1));
        std::copy(path.begin(), path.end(), copy);
        views[i] = {copy, path.size()};
    }
    return {views, count};
}

}  // namespace idem::pg
