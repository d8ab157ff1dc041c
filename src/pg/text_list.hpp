// Text arrays as a scope keeps them: judged once, read often. Backend-local; no locking.
#pragma once

#include "pg/boundary.hpp"

namespace idem::pg {

using TextList = std::span<const std::string_view>;

struct TextElements {
    Datum* values;
    bool* nulls;
    int count;

    // Empty for NULL.
    std::string_view operator[](int i) const {
        if (nulls[i]) return {};
        return view_of(DatumGetTextPP(values[i]));
    }
};

inline TextElements elements_of(ArrayType* array) {
    TextElements elements;
    deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &elements.values, &elements.nulls,
                      &elements.count);
    return elements;
}

// A copy in the memory context, with each element as make(element) has it.
template <class Make>
TextList read_texts(ArrayType* array, MemoryContext context, Make make) {
    const TextElements elements = elements_of(array);
    const auto count = static_cast<std::size_t>(elements.count);
    auto* views = static_cast<std::string_view*>(
        MemoryContextAlloc(context, sizeof(std::string_view) * (count + 1)));
    for (int i = 0; i < elements.count; ++i) {
        const auto made = make(elements[i]);
        const std::string_view view = made;
        char* copy = static_cast<char*>(MemoryContextAlloc(context, view.size() + 1));
        std::copy(view.begin(), view.end(), copy);
        views[i] = {copy, view.size()};
    }
    return {views, count};
}

}  // namespace idem::pg
