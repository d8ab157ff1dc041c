// The watermark table: how far each source of an ordered stream has come. One row per source, which
// never expires.
//
// Rows are read with a dirty scan, as those of the record table, and written under the key lock of
// the source's digest. No indexed column ever changes, and the table's fill factor leaves room, so
// that moving a watermark is a heap-only update.
#pragma once

#include "pg/store/record.hpp"

namespace idem::pg {

inline constexpr int watermark_columns = 6;

struct Watermark {
    std::optional<std::int64_t> seq;  // of the newest committed row, or of our own
    RowWriter writer{};               // another transaction that is moving it
    ItemPointerData tid{};
};

// The source is named like a key. The holder of its key lock keeps the table locked, to write.
// Raises 54000 when the digest is taken by another source, 40001 when the transaction's snapshot
// cannot see the row, and for the holder of the lock what records_after_change() raises.
Watermark find_watermark(const Key& source, Access access);

// Moves the watermark from where it was found, or deletes it without a number, under the key lock.
// Raises 40001 when a transaction without the lock has moved it meanwhile; blocked when such a
// transaction keeps the row for longer than the bound.
ChangeResult write_watermark(const Key& source, const Watermark& from,
                             std::optional<std::int64_t> seq, WaitBound& bound);

std::int32_t watermark_scope(TupleTableSlot* slot);

// The sources of the tenant whose watermarks are committed now, palloc'd, in ascending order of
// their digests.
std::span<const Key> sources_of(std::int32_t scope_id, std::string_view tenant);

}  // namespace idem::pg
