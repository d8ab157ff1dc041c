// Lists of paths into a jsonb value, as a scope keeps them: text arrays, judged once, read often.
//
// core/path.hpp says how a path is written and what it matches.
// Backend-local; no locking.
#pragma once

#include "pg/server.hpp"
#include "pg/text_list.hpp"

namespace idem::pg {

using PathList = TextList;

// Scopes of releases before 0.3.0 know no quotes, and have taken paths of any notation.
enum class Quotes { literal, enclose };

// Raises 22023 unless the array has one dimension at most and every path 1 to 255 bytes, and, where
// quotes enclose names, unless each is written in idem's notation. name is the argument's, for the
// message.
void check_paths(const char* name, ArrayType* paths, Quotes quotes);

// A copy of the views and of what they point to, in the memory context, without the quotes.
PathList read_paths(ArrayType* paths, MemoryContext context, Quotes quotes);

}  // namespace idem::pg
