// The fingerprint of a jsonb request: walks the value and feeds the core's canonical form.
#pragma once

#include "core/fingerprint.hpp"
#include "pg/scope.hpp"

namespace idem::pg {

// NULL for a NULL request: it binds nothing. palloc'd, ready to be stored.
bytea* new_fingerprint(Jsonb* request, const Scope& scope);

// Whether the request is the one that the stored fingerprint was made from. It is compared under
// the version and the secret that the stored one names, in constant time. Two NULLs agree; one does
// not agree with anything else.
bool same_request(Jsonb* request, const bytea* stored, const Scope& scope);

}  // namespace idem::pg
