// Work in an internal subtransaction: it commits, or is rolled back and its error handed over.
//
// The only place outside the worker that catches an error. What the work locks passes to the
// surrounding transaction when it commits, and is freed when it does not.
#pragma once

#include "pg/boundary.hpp"

namespace idem::pg {

// NULL when the work committed; else the error, in the caller's memory context. Re-raise it with
// ReThrowError(), or drop it with FreeErrorData().
ErrorData* run_in_subtransaction(void (*work)(void*), void* argument);

template <class Work>
ErrorData* in_subtransaction(Work work) {
    trivial<Work>();
    return run_in_subtransaction([](void* argument) { (*static_cast<Work*>(argument))(); }, &work);
}

}  // namespace idem::pg
