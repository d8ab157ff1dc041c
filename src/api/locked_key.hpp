// What the row of a key means to a call, and a key at rest under its lock: this transaction holds
// the lock, and no other transaction works on the row.
//
// Locking: all waits of a call share one bound. The key lock is released while a transaction is
// waited for. When a function returns, the key lock is held, and the record table is locked after
// it.
#pragma once

#include <initializer_list>

#include "pg/open_claims.hpp"
#include "pg/store/key_lock.hpp"
#include "pg/store/record.hpp"
#include "pg/store/scope.hpp"

namespace idem::api {

core::FoundRow found_row(const pg::Found& found, const pg::Scope& scope);

// Takes the key lock, waits until no other transaction works on the row, and returns the row.
// Raises ID001 when the bound is reached.
pg::Found find_at_rest(const pg::Key& key, pg::KeyLock& lock, pg::WaitBound& bound);

// The steps of find_at_rest(), for callers that read another table. Both raise ID001 when the bound
// is reached.
void acquire(pg::KeyLock& lock, std::string_view key, pg::WaitBound& bound);
// For the holder of the key lock, when another transaction works on the row: waits for that
// transaction without the lock, then takes the lock again.
void reacquire_after(pg::KeyLock& lock, std::string_view key, const pg::RowWriter& writer,
                     pg::WaitBound& bound);

// Whether the row that was found at rest binds the key: it has not expired, or is the current
// transaction's own.
bool is_live(const pg::Found& found);

// Raises 40001 if the transaction's snapshot cannot see the row that is to be changed.
void check_in_snapshot(const pg::Found& found);
[[noreturn]] void refuse_unseen();

// Raises ID001 if the row was not written within the bound.
void check_written(std::string_view key, const pg::ChangeResult& writing,
                   const pg::WaitBound& bound);

bool is_open_here(const core::Digest& digest);

// Of an operation under a lease, or of one that was released and is not due yet.
pg::Holder lease_of(const pg::Record& record);

// When to retry, in microseconds, by what is known of the holder: not after its lease has ended.
std::int64_t retry_after(const pg::Holder& holder);

// Raises ID001 with what is known of the holder, at the end of the bound.
[[noreturn]] void refuse_in_flight(std::string_view key, const pg::Holder& holder,
                                   const pg::WaitBound& bound);

// Raises ID001 if this transaction has an open claim of the key. function is the name of the called
// function, such as "forget".
void refuse_open_here(const pg::Key& key, const char* function);

// Replaces the row, under the key lock. Raises ID001 if it is not free within the bound.
void replace_record(const pg::Key& key, const pg::Found& found, const pg::NewRecord& record,
                    pg::WaitBound& bound);

// Raises 54000 if the values exceed the scope's max_answer_size together; a NULL counts nothing.
// The size is that before compression and TOAST, so that the same answer is always accepted or
// always refused. The limit protects the storage of the database's owner. Only what the caller
// passes now counts, not what the record has: else a large request, which its sender chooses, would
// keep a worker from storing what it has done. `what` names the values.
void check_size(const char* what, const pg::Scope& scope,
                std::initializer_list<const void*> values);

// Of an unfinished operation, in microseconds: the TTL of a leased claim counts from the end of its
// lease.
std::int64_t ttl_of(const pg::Record& record);

}  // namespace idem::api
