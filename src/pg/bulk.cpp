#include "pg/bulk.hpp"

#include "pg/compat.hpp"
#include "pg/report.hpp"

namespace idem::pg {

BulkWriter::BulkWriter(const Records& records)
    : scan_(records),
      table_(records.table()),
      row_(table_slot_create(table_, nullptr)),
      estate_(CreateExecutorState()),
      target_(makeNode(ResultRelInfo)),
      arbiters_(list_make1_oid(compat::primary_key_of(table_))) {
    InitResultRelInfo(target_, table_, 0, nullptr, 0);
    ExecOpenIndices(target_, false);
}

void BulkWriter::end() {
    ExecCloseIndices(target_);
    FreeExecutorState(estate_);
    ExecDropSingleTupleTableSlot(row_);
    scan_.end();
}

// The scan keeps what it allocates for longer than one key, so only the row is taken apart in the
// memory of this look.
Found BulkWriter::look(const KeyName& name) {
    ResetPerTupleExprContext(estate_);
    if (!scan_.find(name.digest)) return {};
    const MemoryContext before = MemoryContextSwitchTo(GetPerTupleMemoryContext(estate_));
    const Found found = found_by(scan_, name, Contents::claim);
    MemoryContextSwitchTo(before);
    return found;
}

bool BulkWriter::write(const KeyName& name, const Record& record, const Found& found) {
    const MemoryContext before = MemoryContextSwitchTo(GetPerTupleMemoryContext(estate_));
    store_row(row_, name, record);
    const bool written = found.presence == core::Presence::absent ? insert() : replace(found);
    ExecClearTuple(row_);
    MemoryContextSwitchTo(before);
    return written;
}

// Whether the key is taken shows when its entry goes into the index; until then nobody may rely on
// the row, and waits for the lock that the token names.
bool BulkWriter::insert() {
    const TransactionId xid = GetCurrentTransactionId();
    const std::uint32_t token = SpeculativeInsertionLockAcquire(xid);
    table_tuple_insert_speculative(table_, row_, GetCurrentCommandId(true), 0, nullptr, token);
    const bool alone = compat::insert_arbitrated_entries(target_, row_, estate_, arbiters_);
    table_tuple_complete_speculative(table_, row_, token, alone);
    SpeculativeInsertionLockRelease(xid);
    return alone;
}

bool BulkWriter::replace(const Found& found) {
    ItemPointerData tid = found.tid;
    bool new_entries = false;
    switch (compat::update_row(table_, &tid, row_, compat::Waiting::yes, new_entries)) {
        case TM_Ok:
            break;
        case TM_Updated:
        case TM_Deleted:
            return false;
        default:
            report::serialization_failure("The key's record was changed concurrently.");
    }
    if (new_entries) compat::insert_index_entries(target_, row_, estate_);
    return true;
}

}  // namespace idem::pg
