// Locks of rows that transactions without the key lock may be changing: referential checks, the
// purge, and whatever else writes to idem's tables.
#pragma once

#include "pg/server/wait.hpp"

namespace idem::pg {

// What a caller is about to do to a row. Every row lock keeps out a deletion; only a lock on more
// than the key keeps out an update, which changes no key.
enum class RowChange : bool { update, deletion };

// Another transaction that keeps the row from being changed; InvalidTransactionId when none does.
TransactionId transaction_at(Relation relation, ItemPointerData tid, RowChange change);

struct ChangeResult {
    TM_Result result;          // TM_WouldBlock: the row was not free within the bound
    TransactionId in_the_way;  // then: the transaction that kept it, as far as that is known
};

// Locks a row for the change without waiting. TM_WouldBlock when another transaction has locked it.
TM_Result try_lock_row(Relation relation, ItemPointerData tid, RowChange change);

// Calls change() for a row that a transaction without the key lock may be changing too. The row is
// locked first, so that all waiting is done here and change() does not wait.
template <class Change>
ChangeResult change_row(Relation relation, ItemPointerData tid, RowChange kind, WaitBound& bound,
                        Change change) {
    for (;;) {
        const TM_Result locked = try_lock_row(relation, tid, kind);
        if (locked == TM_Ok) return {change(), InvalidTransactionId};
        if (locked != TM_WouldBlock) return {locked, InvalidTransactionId};
        const TransactionId other = transaction_at(relation, tid, kind);
        // None: it has just ended, or others queue for the row.
        const bool waited =
            TransactionIdIsValid(other) ? bound.wait_for({other}) : bound.wait_briefly();
        if (!waited) return {TM_WouldBlock, other};
    }
}

}  // namespace idem::pg
