// idem's own tables: finding them, and writing rows without SPI.
//
// Without SPI there is no plan to go stale, no row security to pass and no role to switch to; who
// may do what is checked before. Found OIDs are kept per backend until the relation cache says that
// the table is gone. Every index that the relation has at that moment is maintained, whoever made
// it; OIDs of indexes are never kept.
#pragma once

#include "pg/compat.hpp"
#include "pg/server.hpp"

namespace idem::pg {

// The last is a sequence. dropped_scope is there from 0.3.0 on.
enum class Table { record, watermark, scope, dropped_scope, secret, sweep, scope_id };
inline constexpr std::size_t table_count = 7;

// Opens the table, or raises 55000 when the extension is not installed in this database.
Relation open_table(Table table, LOCKMODE mode);

// The table's OID; raises as open_table() does.
Oid table_oid(Table table);

// The same, but InvalidOid when there is none.
Oid find_table_oid(Table table);

// Has the function called whenever the table is invalidated: changed by whoever announces it with
// CacheInvalidateRelcache(), altered, dropped, or any of that rolled back. One function a table; it
// must not raise or read tables.
void on_invalidation(Table table, void (*forget)());

// Registers with the relation cache.
void init_tables();

// Inserts the virtual tuple in the slot, and its index entries. True when a unique index holds, or
// may come to hold, the same key: only with tolerate_duplicates, otherwise that raises 23505.
bool insert_row(Relation relation, TupleTableSlot* slot, bool tolerate_duplicates);

// Adds index entries for a tuple that is already in the heap; the result as for insert_row().
bool add_index_entries(Relation relation, TupleTableSlot* slot, bool tolerate_duplicates);

// A scan of so many blocks, of the newest committed rows: without predicate locks, and of a large
// table through a ring of buffers that leaves the others alone.
TableScanDesc scan_blocks(Relation relation, BlockNumber first, BlockNumber size);

// Whether this very transaction wrote the row version in the slot.
bool written_here(TupleTableSlot* slot);

// Puts the values into the slot, in place of what it holds; columns beyond them are NULL.
void fill_row(TupleTableSlot* slot, std::span<const Datum> values, std::span<const bool> nulls);

// The same in a new slot of the relation. Drop it with ExecDropSingleTupleTableSlot().
TupleTableSlot* new_row(Relation relation, std::span<const Datum> values,
                        std::span<const bool> nulls);

}  // namespace idem::pg
