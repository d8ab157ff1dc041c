// A key under its lock: at rest, or held by a leased claim.
//
// A key is at rest when this transaction holds its lock and no other transaction works on its row.
// A leased claim is found by its token, in any transaction and session: the token leads to the row,
// and the row to the scope, which the caller must be able to use. Under the key lock, the core's
// fencing rules judge the token by what the row says then.
//
// Locking: all waits of a call share one bound, the scope's. The key lock is released while a
// transaction is waited for. When a function returns, the key lock is held until the transaction
// ends, and the record table is locked after it.
#pragma once

#include "pg/lock.hpp"
#include "pg/open_claims.hpp"
#include "pg/record.hpp"
#include "pg/scope.hpp"

namespace idem::api {

// ---- A key at rest ------------------------------------------------------------------------------

// Takes the key lock, waits until no other transaction works on the row, and returns the row.
// Raises ID001 when the bound is reached.
pg::Found find_at_rest(const pg::KeyName& name, pg::KeyLock& lock, const pg::WaitBound& bound);

// The steps of find_at_rest(), for callers that read another table. Both raise ID001 when the bound
// is reached.
void acquire(pg::KeyLock& lock, std::string_view key, const pg::WaitBound& bound);
// For the holder of the key lock, when another transaction works on the row: waits for that
// transaction without the lock, then takes the lock again.
void give_way(pg::KeyLock& lock, std::string_view key, const pg::RowWriter& writer,
              const pg::WaitBound& bound);

// Whether the row that was found at rest binds the key: it has not expired, or is the current
// transaction's own.
bool is_live(const pg::Found& found);

// Raises 40001 if the transaction's snapshot cannot see the row that is to be changed.
void check_in_snapshot(const pg::Found& found);

// Raises ID001 if the row was not written within the bound.
void check_written(std::string_view key, const pg::WriteResult& writing);

// Whether this transaction has claimed the key and has not finished it.
bool is_open_here(const core::Digest& digest);

// Of an operation under a lease, or of one that was released and is not due yet.
pg::report::Holder lease_of(const pg::Record& record);

// When to retry, in microseconds, by what is known of the holder: not after its lease has ended.
std::int64_t retry_after(const pg::report::Holder& holder);

// Raises ID001 with what is known of the holder, for calls whose wait is the scope's.
[[noreturn]] void refuse_in_flight(std::string_view key, const pg::report::Holder& holder);

// Raises ID001 if this transaction has an open claim of the key. call is the function's name, such
// as "idem.forget()".
void refuse_open_here(const pg::KeyName& name, const char* call);

// Replaces the row, under the key lock. Raises ID001 if it is not free within the bound.
void replace_record(const pg::KeyName& name, const pg::Found& found, const pg::Record& record,
                    const pg::WaitBound& bound);

// ---- A leased claim -----------------------------------------------------------------------------

struct LeasedClaim {
    const pg::Scope* scope;
    pg::KeyName name;
    pg::Found found;      // as read under the key lock
    pg::Claim* note;      // what this transaction remembers of the claim
    pg::WaitBound bound;  // for all waits of the call: the scope's wait

    const pg::Record& record() const { return found.record; }
};

// Raises ID004 if the attempt is fenced off, or if the caller may not know of the key; ID005 if
// this attempt is finished; ID001 if another transaction holds the key for longer than the scope's
// wait; ID009 for too many open claims; 40001 if the snapshot cannot see the row.
LeasedClaim lock_leased_claim(const core::Token& token);

// The same for renew and checkpoint, which raise 22023 for the token of an atomic claim.
LeasedClaim lock_leased_claim(std::optional<std::string_view> token, const char* function);

// For calls that only compute something from a token. Raises ID005 unless an atomic token names a
// claim of this transaction, finished or not; and ID004 unless a leased token, of any attempt, has
// a record in a scope that the caller may use.
void check_usable(const core::Token& token);

// Writes the new version of the claim's row.
void update_record(const LeasedClaim& leased, const pg::Record& record);

// The TTL of a leased claim counts from the end of its lease.
TimestampTz expires_after(const pg::Record& record, TimestampTz lease_end);
std::int64_t ttl_of(const pg::Record& record);

}  // namespace idem::api
