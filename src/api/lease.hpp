// A leased claim, found by its token in any transaction and session: the token leads to the row,
// and the row to the scope, which the caller must be able to use. Under the key lock, the core's
// fencing rules judge the token by what the row says then.
//
// Locking: as in api/locked_key. The key lock is held until the transaction ends.
#pragma once

#include "api/arguments.hpp"
#include "pg/open_claims.hpp"

namespace idem::api {

struct LeasedClaim : KeyCall {
    pg::Found found;      // as read under the key lock
    pg::Claim* note;      // what this transaction remembers of the claim
    pg::WaitBound bound;  // for all waits of the call: the scope's wait
};

// Raises ID004 if the attempt is fenced off, or if the caller may not know of the key; ID005 if
// this attempt is finished; ID001 if another transaction holds the key for longer than the scope's
// wait; 54000 for too many open claims; 40001 if the snapshot cannot see the row.
LeasedClaim lock_leased_claim(const core::Token& token);

// For calls that only compute something from a token. Raises ID005 unless an atomic token names a
// claim of this transaction, finished or not; and ID004 unless a leased token, of any attempt, has
// a record in a scope that the caller may use.
void check_usable(const core::Token& token);

}  // namespace idem::api
