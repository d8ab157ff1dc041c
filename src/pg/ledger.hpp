// max_bytes: how many bytes the records of each tenant take, in accounts in shared memory.
//
// A row takes its heap tuple, its line pointer and the values that it keeps out of line. Index
// entries, page headers and free space do not count.
//
// An account is corrected by the purge: while the sweep goes round the table, it adds up what each
// tenant has (`counted`), and when it has read every block, that replaces what was known. What a
// transaction writes counts at once (`pending`), and from its commit until the end of the next full
// round beside what was counted. So:
//
//   stored = known + the growth of the last round and of this one + what has not committed
//
// A row is either visible when the sweep reads its block, or its growth is noted after that: the
// callback of the commit runs after the transaction is visible. So no committed row is missed, and
// a row that both have counts twice until the next round ends. An update within its page counts
// what it adds; one that moves the row counts as a new row, because it may move it from a block
// that is still to be read into one that was. What is deleted goes when the round ends that does
// not find it. Only these are missed: for one round at most the rows of a transaction that was
// prepared before, and those that a purge deleted when it is rolled back.
//
// After a restart, and when a scope gets its max_bytes, nothing is known until a round that began
// after it has ended: only what is written since counts.
//
// The accounts are a TenantTable. An account that is empty after a round is removed; while none is
// free, a tenant without one is refused, because a client must not pass the limit by inventing
// tenants. The account of no_scope in each database holds the round.
#pragma once

#include "pg/server.hpp"

namespace idem::pg {

// False on a server that has not preloaded the library: no bytes are counted.
bool ledger_available();

// The bytes that the tenant's records take, with those that are not committed. Opens an account.
// Nothing if none is free.
std::optional<std::int64_t> stored_bytes(std::int32_t scope_id, std::string_view tenant);

// This transaction has written so many bytes more. Does nothing where the ledger is not available.
void note_growth(std::int32_t scope_id, std::string_view tenant, std::int64_t bytes);

// --- The round, by the one step of the sweep that moves its hand ---------------------------------

// The step begins at this block. Rows before are those that an earlier step has read, or the round
// counts for nothing.
void begin_count(Relation records, BlockNumber first);

// The step has read the row, which stays. Rows come in the order of the table.
void count_row(std::int32_t scope_id, std::string_view tenant, const ItemPointerData& row,
               std::int64_t bytes);

// The step goes on at this block; it has read all before it. 0: the round is complete.
void continue_count(BlockNumber next);

// The database has been dropped, or its extension.
void close_accounts(Oid database);

inline constexpr int ledger_locks = 64;
Size ledger_size();
void attach_ledger(void* memory, LWLockPadded* locks, bool found);

}  // namespace idem::pg
