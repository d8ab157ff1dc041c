// Wake-ups: the end of a lease, announced by the transaction that ends it to the backends that wait
// for it.
//
// A leased claim holds no lock between its transactions, so there is nothing to queue for. Instead,
// each backend has a slot in shared memory, when the library is preloaded: a single number, the
// event that the backend waits for. A waiter writes its slot, looks at the row again, and only then
// waits on its latch. A transaction that ends a lease notes the event, and after its commit sets
// the latch of each backend with that number in its slot. The full barriers between "write the
// slot, look" and "commit, read the slots" make sure that one side sees the other.
//
// There are no locks. A wake-up too many does no harm, because a waiter always looks again: an
// event is a hash, after an error a slot keeps its event until the transaction ends, and a note
// outlives ROLLBACK TO. A wake-up too few costs a tenth of a second, the longest wait: without
// preloading, after COMMIT PREPARED, and after changes past idem's functions.
//
// A transaction that ends no lease pays nothing, and one that ends a lease while no backend waits
// reads one counter.
#pragma once

#include "core/digest.hpp"
#include "pg/server/postgres.hpp"

namespace idem::pg {

// Of this backend, as in ProcGlobal->allProcs: from 0 to MaxBackends - 1.
inline int backend_number() {
    const auto number = MyProc - ProcGlobal->allProcs;
    Assert(number >= 0 && number < MaxBackends);
    return static_cast<int>(number);
}

// What a backend can wait for. Different events may be equal.
using Event = std::uint64_t;

// The key is finished, forgotten or free for a takeover.
Event key_event(const core::Digest& digest);
// An operation of the scope can be taken over.
Event scope_event(std::int32_t scope_id);

// Makes the transactions that commit from now on wake this backend on the event. Returns false if
// it is announced already; else the caller must look again before it waits.
bool announce_wait(Event event);
// Ends the announcement, if there is one.
void withdraw_wait();

// Wakes the backends that wait for the event when this transaction has committed.
void wake_at_commit(Event event);

// At the end of each transaction, so that errors need no care: withdraws the announcement, and
// wakes the backends that wait for what the transaction has committed.
void end_waits(bool committed);

// The number of backends that have announced a wait.
int announced_waits();

Size wakeup_size();
void attach_wakeup(void* memory, LWLockPadded* locks, bool found);

}  // namespace idem::pg
