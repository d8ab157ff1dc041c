// The watermark table: how far each source of an ordered stream has come. One row per source, which
// never expires.
//
// Rows are read with a dirty scan, as those of the record table, and written under the key lock of
// the source's digest. No indexed column ever changes, and the table's fill factor leaves room, so
// that moving a watermark is a heap-only update.
#pragma once

#include "pg/record.hpp"
#include "pg/table.hpp"

namespace idem::pg {

class Watermarks : public KeyedTable {
  public:
    static Watermarks to_read() { return KeyedTable::to_read(table_oid(Table::watermark)); }
    static Watermarks to_write() { return KeyedTable::to_write(table_oid(Table::watermark)); }

  private:
    Watermarks(const KeyedTable& table) : KeyedTable(table) {}
};

struct Watermark {
    std::optional<std::int64_t> seq;  // of the newest committed row, or of our own
    bool in_snapshot = true;
    RowWriter writer{};  // another transaction that is moving it
    ItemPointerData tid{};
};

// The source is named like a key. Raises 54000 when the digest is taken by another source.
Watermark find_watermark(const Watermarks& watermarks, const KeyName& source);

// The scope's id of the watermark in the slot.
std::int32_t watermark_scope(TupleTableSlot* slot);

// The sources of the tenant whose watermarks are committed now, as KeyName*, in ascending order of
// their digests.
List* sources_of(std::int32_t scope_id, std::string_view tenant);

// Moves the watermark from where it was found, under the key lock. Raises 40001 when a transaction
// without the lock has moved it meanwhile; blocked when such a transaction keeps the row for longer
// than the bound.
WriteResult move_watermark(const Watermarks& watermarks, const KeyName& source,
                           const Watermark& from, std::int64_t seq, const WaitBound& bound);

// Deletes the watermark that was found, under the key lock.
WriteResult delete_watermark(const Watermarks& watermarks, const Watermark& found,
                             const WaitBound& bound);

}  // namespace idem::pg
