#include "pg/bulk.hpp"

#include "pg/report.hpp"

namespace idem::pg {

BulkWriter::BulkWriter(const Records& records)
    : records_(records),
      scan_(records),
      indexes_(records.table()),
      row_(table_slot_create(records.table(), nullptr)),
      memory_(AllocSetContextCreate(CurrentMemoryContext, "idem key", ALLOCSET_SMALL_SIZES)) {}

void BulkWriter::end() {
    indexes_.close();
    MemoryContextDelete(memory_);
    ExecDropSingleTupleTableSlot(row_);
    scan_.end();
}

// The scan keeps what it allocates for longer than one key, so only the row is taken apart in the
// memory of this look.
Found BulkWriter::look(const KeyName& name) {
    MemoryContextReset(memory_);
    if (!scan_.find(name.digest)) return {};
    const MemoryContext before = MemoryContextSwitchTo(memory_);
    const Found found = found_by(scan_, name, Contents::claim);
    MemoryContextSwitchTo(before);
    return found;
}

bool BulkWriter::write(const KeyName& name, const Record& record, const Found& found) {
    const MemoryContext before = MemoryContextSwitchTo(memory_);
    store_row(row_, name, record);
    const bool written = found.presence == core::Presence::absent ? insert() : replace(name, found);
    ExecClearTuple(row_);
    MemoryContextSwitchTo(before);
    return written;
}

// Whether the key is taken shows when its entry goes into the index. Until then other callers
// cannot rely on the row, and wait for the lock that the token names, even those that must not
// wait. So nothing may happen under that lock that can wait.
bool BulkWriter::insert() {
    const Relation table = records_.table();
    const TransactionId xid = GetCurrentTransactionId();
    const std::uint32_t token = SpeculativeInsertionLockAcquire(xid);
    table_tuple_insert_speculative(table, row_, GetCurrentCommandId(true), 0, nullptr, token);
    const bool alone = indexes_.claim_digest(row_);
    table_tuple_complete_speculative(table, row_, token, alone);
    SpeculativeInsertionLockRelease(xid);
    if (alone) indexes_.add_other_entries(row_, IndexEntries::all);
    return alone;
}

bool BulkWriter::replace(const KeyName& name, const Found& found) {
    switch (replace_row(records_, name, found.tid, row_, WaitBound::none()).result) {
        case TM_Ok:
            return true;
        case TM_Updated:
        case TM_Deleted:
            return false;
        default:
            report::serialization_failure(
                "Another transaction changed the key's record at the same time.");
    }
}

}  // namespace idem::pg
