// A key at rest: its row under the key lock, once nobody is at work on it past the lock either.
//
// For whoever must not act on a key in flight: the waits for the lock and for transactions share
// one bound. The lock is kept; the record table is locked after it, until the transaction ends.
#pragma once

#include "pg/key_lock.hpp"
#include "pg/store.hpp"

namespace idem::api {

// Raises ID001 with what can be told of the lock's holder.
[[noreturn]] void refuse_in_flight(const pg::KeyLock& lock, std::string_view key);

// wait is in microseconds; raises ID001 when it is over.
pg::Found settled(const pg::KeyName& name, pg::KeyLock& lock, std::int64_t wait);

}  // namespace idem::api
