// Lists of paths into a jsonb value, as a scope keeps them: text arrays, judged once, read often.
//
// What a path means is core/path_filter.hpp's concern. Backend-local; no locking.
#pragma once

#include "pg/server.hpp"

namespace idem::pg {

using PathList = std::span<const std::string_view>;

// Raises 22023 unless the array has one dimension at most and every path 1 to 255 bytes. name is
// the argument's, for the message.
void check_paths(const char* name, ArrayType* paths);

// A copy of the views and of what they point to, in the memory context.
PathList read_paths(ArrayType* paths, MemoryContext context);

}  // namespace idem::pg
