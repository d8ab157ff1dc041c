// max_bytes: how many bytes the records of each tenant take, in accounts in shared memory.
//
// A row takes its heap tuple, its line pointer and the values that it keeps out of line. Index
// entries, page headers and free space do not count.
//
// An account is corrected by the purge: while the sweep goes round the table, it adds up what each
// tenant has, and when it has read every block, that replaces what was known. What a transaction
// writes counts at once, as pending. When it has committed, it depends on the place of the row: in
// a block that the round has yet to read, the row counts beside what is known until the round ends
// (`ahead`); in a block that was read, until the next round ends (`behind`, then `carried`).
//
//   stored = known + carried + ahead + behind + pending
//
// This never misses a committed row: the callback of the commit runs after the transaction is
// visible, so the sweep sees a row that counts as ahead. In doubt a row counts as behind, and twice
// until the next round ends. An update within its page counts what it adds; one that moves the row
// counts as a new row, because it may move it from a block that is still to be read into one that
// was. What is deleted goes when the round ends that does not find it.
//
// What may be missed, until the next round ends: the records of a transaction that stays prepared
// for more than a round, and those that a purge deletes that is rolled back.
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

// This transaction has written so many bytes more, in this block. Does nothing where the ledger is
// not available.
void note_growth(std::int32_t scope_id, std::string_view tenant, BlockNumber block,
                 std::int64_t bytes);

// --- The round, by the one step of the sweep that moves its hand ---------------------------------

// The step begins at this block, and reads none from `end` on. The blocks before are those that an
// earlier step has read, or the round counts for nothing.
void begin_count(Relation records, BlockNumber first, BlockNumber end);

// The step is about to read the blocks before this one.
void begin_reading(BlockNumber until);

// The step has read the row, which stays. Rows come in the order of the table.
void count_row(std::int32_t scope_id, std::string_view tenant, const ItemPointerData& row,
               std::int64_t bytes);

// The step has read all blocks before this one. 0: the round is complete.
void end_reading(BlockNumber next);
void end_count();

// The database has been dropped, or its extension.
void close_accounts(Oid database);

inline constexpr int ledger_locks = 64;
Size ledger_size();
void attach_ledger(void* memory, LWLockPadded* locks, bool found);

}  // namespace idem::pg
