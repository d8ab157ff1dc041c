// Work in an internal subtransaction, which commits, or rolls back and returns its error; and locks
// that belong to the (sub)transaction in which they are taken.
//
// The only place outside the worker that catches errors. Locks that the work takes pass to the
// surrounding transaction when the subtransaction commits, and are released when it rolls back.
#pragma once

#include "pg/server/values.hpp"

namespace idem::pg {

// What becomes of work that raises no error.
enum class Ending : bool { commit, undo };

// Returns NULL when the work has come to its end, else its error, in the caller's memory context.
// Raise it again with ReThrowError() or drop it with FreeErrorData().
ErrorData* run_in_subtransaction(void (*work)(void*), void* argument, Ending ending);

template <class Work>
ErrorData* in_subtransaction(Work work, Ending ending = Ending::commit) {
    trivial<Work>();
    return run_in_subtransaction([](void* argument) { (*static_cast<Work*>(argument))(); }, &work,
                                 ending);
}

// Makes the (sub)transaction the owner of a lock, rather than the portal or the function call, so
// that ROLLBACK TO releases the lock and a later statement can. When a later FETCH from a cursor
// fails, rolling back to a savepoint releases what the portal owns, although the rows that earlier
// ones wrote remain.
template <class Work>
auto as_transaction_owner(Work work) {
    ResourceOwner before = std::exchange(CurrentResourceOwner, CurTransactionResourceOwner);
    const auto result = work();
    CurrentResourceOwner = before;
    return result;
}

// Locks the relation until the (sub)transaction ends.
void lock_for_transaction(Oid relation, LOCKMODE mode);

}  // namespace idem::pg
