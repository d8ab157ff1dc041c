// Text arrays as a scope keeps them: judged once, read often. Backend-local; no locking.
//
// Lists of paths into a jsonb value, as a scope keeps them: text arrays, judged once, read often.
//
// How a path is written is core/path_notation.hpp's concern, what it means core/path_filter.hpp's.
// Backend-local; no locking.
//
// Walks a jsonb value without the members that a scope's list leaves out, for the fingerprint and
// for what is stored alike. Names and paths are both in the server's encoding.
//
// The fingerprint of a jsonb request: walks the value and feeds the core's canonical form.
//
// What of a response must not be stored: the members on a scope's list.
#pragma once

#include "core/fingerprint.hpp"
#include "core/path_filter.hpp"
#include "pg/boundary.hpp"
#include "pg/server.hpp"

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

using PathList = TextList;

// Scopes of releases before 0.3.0 know no quotes, and have taken paths of any notation.
enum class Quotes { literal, enclose };

// Raises 22023 unless the array has one dimension at most and every path 1 to 255 bytes, and, where
// quotes enclose names, unless each is written in idem's notation. name is the argument's, for the
// message.
void check_paths(const char* name, ArrayType* paths, Quotes quotes);

// A copy of the views and of what they point to, in the memory context, without the quotes.
PathList read_paths(ArrayType* paths, MemoryContext context, Quotes quotes);

// Calls visit(token, value) for everything else, in the order of JsonbIteratorNext(). True when a
// member was left out.
template <class Visit>
bool walk_without(Jsonb* root, PathList paths, Visit visit) {
    core::PathFilter filter(paths);
    JsonbIterator* iterator = JsonbIteratorInit(&root->root);
    JsonbValue value;
    bool any = false;
    bool left_out = false;
    for (;;) {
        const JsonbIteratorToken token = JsonbIteratorNext(&iterator, &value, left_out);
        if (token == WJB_DONE) return any;
        CHECK_FOR_INTERRUPTS();
        if (left_out) {  // this was the value of the member, whole
            left_out = false;
            continue;
        }
        if (token == WJB_BEGIN_OBJECT) filter.begin_object();
        if (token == WJB_END_OBJECT) filter.end_object();
        if (token == WJB_KEY && filter.excludes({value.val.string.val,
                                                 static_cast<std::size_t>(value.val.string.len)})) {
            any = left_out = true;
            continue;
        }
        visit(token, value);
    }
}

// NULL for a NULL request: it binds nothing. palloc'd, ready to be stored.
bytea* new_fingerprint(Jsonb* request, PathList exclude);

// Whether the request is the one that the stored fingerprint was made from. It is compared under
// the version and the secret that the stored one names, in constant time. Two NULLs agree; one does
// not agree with anything else.
bool same_request(Jsonb* request, const bytea* stored, PathList exclude);

// The response without the members that the paths name; the very same when there are none in it.
Jsonb* redact(Jsonb* response, PathList paths);

}  // namespace idem::pg
