// What a scope leaves out of a jsonb request or response: the lists of paths, the walk without the
// members that they name, the fingerprint of a request and the part of a response that is stored.
//
// core/path.hpp defines how a path is written and what it matches. Names and paths are both in the
// server's encoding. Backend-local; no locking.
#pragma once

#include "core/fingerprint.hpp"
#include "core/path.hpp"
#include "pg/boundary.hpp"
#include "pg/server.hpp"

namespace idem::pg {

// --- Lists of texts, as a scope keeps them: checked once, read often ----------------------------

using TextList = std::span<const std::string_view>;

struct TextElements {
    Datum* values;
    bool* nulls;
    int count;

    // An empty view for NULL.
    std::string_view operator[](int i) const {
        Assert(i >= 0 && i < count);
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

// A copy of the array in the memory context, with make(element) in place of each element.
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

// --- Lists of paths -----------------------------------------------------------------------------

using PathList = TextList;

// Raises 22023 unless the array has at most one dimension and each path has 1 to 255 bytes and is
// written in idem's notation. name is the argument's name for the message.
void check_paths(const char* name, ArrayType* paths);

// A copy of the paths in the memory context, without the quotes.
PathList read_paths(ArrayType* paths, MemoryContext context);

// --- What is left: fingerprint and stored response ----------------------------------------------

struct NumberedList {
    PathList paths;
    core::ListNumber number;
};

// The fingerprint of the request without the paths, palloc'd and ready to be stored. NULL for a
// NULL request, which binds nothing.
bytea* new_fingerprint(Jsonb* request, const NumberedList& exclude);

// The number of the list that the stored fingerprint was made with; 0 for none.
core::ListNumber list_number(const bytea* stored);

// A fingerprint that every request matches, NULL included; palloc'd.
bytea* fingerprint_of_any();

// Whether a stored fingerprint, which may be NULL, is this one.
bool is_of_any(const bytea* stored);

// Whether the stored fingerprint was made from this request. It is compared in constant time, under
// the version and the secret that the stored one names. Two NULLs agree; a NULL and a value do not.
bool same_request(Jsonb* request, const bytea* stored, PathList exclude);

// How many members are named, so that an error does not grow with the request.
inline constexpr std::size_t max_differences = 10;

// The paths of the members that differ between two requests. A member within an object is named
// itself, an array as a whole.
struct Differences {
    struct Paths {
        std::array<const char*, max_differences> text;
        std::size_t count;

        std::span<const char* const> view() const { return std::span(text).first(count); }
    };
    Paths changed;  // with another value
    Paths added;    // new
    Paths missing;
    std::size_t more;  // that are not named, because there are too many or a path is too long

    std::size_t named() const { return changed.count + added.count + missing.count; }
};

// How a request differs from the stored one, palloc'd; NULL if no member can be named. Members that
// the paths name do not count.
Differences* differences(Jsonb* given, Jsonb* stored, PathList exclude);

// The response without the members that the paths name; the very same pointer when it has none.
Jsonb* redact(Jsonb* response, PathList paths);

// Raises 22023 unless the headers are an object whose members are strings or arrays of strings,
// with names and values as in core/header.hpp. argument is the name of the argument that has them.
void check_headers(const char* argument, Jsonb* headers);

// Such headers without those of these names, whatever their case; likewise.
Jsonb* redact_headers(Jsonb* headers, TextList names);

}  // namespace idem::pg
