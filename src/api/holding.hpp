// Holding on to a leased claim by its token, in whatever transaction and session.
//
// The token leads to the row, the row to the scope; the caller must be able to use it. The key lock
// is waited for within the scope's bound, then the core's fencing rules judge what the row says
// now. Whoever gets through holds the key lock and a row in progress until the transaction ends.
#pragma once

#include "pg/open_claims.hpp"
#include "pg/record.hpp"
#include "pg/scope.hpp"

namespace idem::api {

struct Holding {
    const pg::Scope* scope;
    pg::KeyName name;
    pg::Record record;    // as it is now
    pg::Claim* claim;     // this transaction's note of it
    pg::WaitBound bound;  // of the whole call: the scope's wait
};

// Raises ID004 when the attempt is fenced off, or there is nothing that the caller may know of;
// ID005 when this attempt is finished; ID001 when another transaction is at the key for longer than
// the scope's wait; ID009; 40001.
Holding hold(const core::Token& token);

// For renew and checkpoint: raises 22023 for the token of an atomic claim.
Holding hold_leased(std::optional<std::string_view> token, const char* function);

// For calls that only compute from a token: that it is of a claim of this transaction, finished or
// not, or of a leased one that has its record in a scope of the caller's, whatever the attempt.
// Raises ID005 and ID004.
void check_usable(const core::Token& token);

// Writes what became of the record, which stays this transaction's.
void update(const Holding& holding, const pg::Record& record);

// When the record expires if its lease ends then: the claim's TTL counts from the end.
TimestampTz expires_after(const pg::Record& record, TimestampTz lease_end);
std::int64_t ttl_of(const pg::Record& record);

}  // namespace idem::api
