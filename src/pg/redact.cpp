#include "pg/redact.hpp"

#include "pg/compat.hpp"
#include "pg/filtered_walk.hpp"

namespace idem::pg {

Jsonb* redact(Jsonb* response, PathList paths) {
    if (response == nullptr || paths.empty() || JB_ROOT_IS_SCALAR(response)) return response;
    compat::JsonbBuilder builder;
    const bool removed =
        walk_without(response, paths, [&](JsonbIteratorToken token, JsonbValue& value) {
            const bool has_value = token == WJB_KEY || token == WJB_VALUE || token == WJB_ELEM;
            builder.push(token, has_value ? &value : nullptr);
        });
    return removed ? builder.finish() : response;
}

}  // namespace idem::pg
