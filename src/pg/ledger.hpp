// max_bytes: how many bytes the records of each tenant take, in accounts in shared memory.
//
// A row takes its heap tuple, its line pointer and the values that it keeps out of line. Index
// entries, page headers and free space do not count.
//
// An account is corrected by the purge: while the sweep goes round the record tables, it adds up
// what each tenant has, and when it has read every block, that replaces what was known. What a
// transaction writes counts at once, as pending. When it has committed, it depends on the place of
// the row: in a block that the round has yet to read, the row counts beside what is known until the
// round ends (`ahead`); in a block that was read, until the next round ends (`behind`, then
// `carried`).
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
// for more than a round, those that a purge deletes that is rolled back, and those that are in a
// table already when it becomes a record table.
//
// A round in which the sweep skips a table (it is locked, or a subscription writes it), or in which
// one appears that the sweep has not seen, counts for nothing: what was known stays, and all that
// was written counts on.
//
// After a restart, and when a scope gets its max_bytes, nothing is known until a round that began
// after it has ended: only what is written since counts.
//
// The accounts are a TenantTable. An account that is empty after a round is removed; while none is
// free, a tenant without one is refused, because a client must not pass the limit by inventing
// tenants. The account of no_scope in each database holds the round.
#pragma once

#include "pg/record_tables.hpp"
#include "pg/server.hpp"

namespace idem::pg {

// False on a server that has not preloaded the library: no bytes are counted.
bool ledger_available();

// The bytes that the tenant's records take, with those that are not committed. Opens an account.
// Nothing if none is free.
std::optional<std::int64_t> stored_bytes(std::int32_t scope_id, std::string_view tenant);

// This transaction has written so many bytes more, in this block. Does nothing where the ledger is
// not available.
void note_growth(std::int32_t scope_id, std::string_view tenant, RecordBlock block,
                 std::int64_t bytes);

// --- The round, by the one step of the sweep that moves its hand ---------------------------------

// The step comes to a table, whose blocks it reads from this one on, and none from `end` on. The
// blocks before are those that an earlier step has read, or the round counts for nothing.
void begin_count(Relation records, RecordBlock first, RecordBlock end);

// The step is about to read the blocks before this one.
void begin_reading(RecordBlock until);
inline constexpr RecordBlock every_block = ~RecordBlock{0};

// A row that the step has read and that stays. They come in the order of their blocks.
struct CountedRow {
    RecordBlock block;
    OffsetNumber offset;

    bool is_after(const CountedRow& other) const {
        return block != other.block ? block > other.block : offset > other.offset;
    }
};
void count_row(std::int32_t scope_id, std::string_view tenant, const CountedRow& row,
               std::int64_t bytes);

// There are rows that the round does not read, so that it counts for nothing.
void miss_rows();

// The step has read all blocks before this one. 0: the round is complete.
void end_reading(RecordBlock next);
void end_count();

// The database has been dropped, or its extension.
void close_accounts(Oid database);

inline constexpr int ledger_locks = 64;
Size ledger_size();
void attach_ledger(void* memory, LWLockPadded* locks, bool found);

}  // namespace idem::pg
