// Walks a jsonb value without the members that a scope's list leaves out, for the fingerprint and
// for what is stored alike. Names and paths are both in the server's encoding.
#pragma once

#include "core/path.hpp"
#include "pg/path_list.hpp"
#include "pg/server.hpp"

namespace idem::pg {

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

}  // namespace idem::pg
