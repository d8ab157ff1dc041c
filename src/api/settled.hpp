// A key at rest: its row under the key lock, once nobody is at work on it past the lock either.
//
// For whoever must not act on a key in flight: the waits for the lock and for transactions share
// one bound. The lock is kept, but let go while a transaction or a lease is waited for; the record
// table is locked after it, until the transaction ends.
#pragma once

#include "pg/lock.hpp"
#include "pg/record.hpp"

namespace idem::api {

// Raises ID001, for calls whose wait is the scope's, with what can be told of the holder.
[[noreturn]] void refuse_in_flight(std::string_view key, const pg::report::Holder& holder);

// Takes the key lock. Raises ID001 when the bound comes first.
void acquire(pg::KeyLock& lock, std::string_view key, const pg::WaitBound& bound);

// For whoever has the key lock and finds another at the row: waits without it, then takes it again.
// Raises ID001 when the bound comes first.
void give_way(pg::KeyLock& lock, std::string_view key, const pg::RowWriter& work,
              const pg::WaitBound& bound);

// Raises ID001 when the row was not written within the bound.
void check_written(std::string_view key, const pg::WriteResult& writing);

// Acquires the lock; raises ID001 when the bound comes first.
pg::Found settled(const pg::KeyName& name, pg::KeyLock& lock, const pg::WaitBound& bound);

}  // namespace idem::api
