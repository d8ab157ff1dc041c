// What a scope leaves out of a jsonb request or response: the lists of paths, the walk without the
// members that they name, the fingerprint of a request and the part of a response that is stored.
//
// core/path.hpp defines how a path is written and what it matches. Names and paths are both in the
// server's encoding. Backend-local; no locking.
#pragma once

#include "core/fingerprint.hpp"
#include "core/path.hpp"
#include "pg/server/values.hpp"

namespace idem::pg {

// --- Lists of texts -----------------------------------------------------------------------------

using TextList = std::span<const std::string_view>;

// The elements of the array, which they point into; an empty view for NULL. The list is palloc'd.
TextList texts_of(ArrayType* array);

// --- Lists of paths -----------------------------------------------------------------------------

using PathList = TextList;

// Raises 22023 unless the array has at most one dimension and each path has 1 to 255 bytes and is
// written in idem's notation. name is the argument's name for the message.
void check_paths(const char* name, ArrayType* paths);

// The paths without their quotes, palloc'd.
PathList read_paths(ArrayType* paths);

// --- What is left: fingerprint and stored response ----------------------------------------------

struct NumberedList {
    PathList paths;
    core::ListNumber number;
};

// The fingerprint of the request without the paths, palloc'd and ready to be stored. NULL for a
// NULL request, which binds nothing.
bytea* new_fingerprint(Jsonb* request, const NumberedList& exclude);

// A fingerprint that every request matches, NULL included; palloc'd.
bytea* fingerprint_of_any();

// Whether a stored fingerprint, which may be NULL, is this one.
bool is_of_any(const bytea* stored);

// Whether the stored fingerprint was made from this request. It is compared in constant time, under
// the version and the secret that the stored one names. Two NULLs agree; a NULL and a value do not.
bool same_request(Jsonb* request, const bytea* stored, PathList exclude);

// The response without the members that the paths name; the very same pointer when it has none.
Jsonb* redact(Jsonb* response, PathList paths);

// Raises 22023 unless the headers are an object whose members are strings or arrays of strings,
// with names and values as in core/header.hpp. argument is the name of the argument that has them.
void check_headers(const char* argument, Jsonb* headers);

// Such headers without those of these names, whatever their case; likewise.
Jsonb* redact_headers(Jsonb* headers, TextList names);

}  // namespace idem::pg
