#include "pg/prepared.hpp"

#include "pg/compat.hpp"
#include "pg/store.hpp"
#include "pg/table.hpp"

namespace idem::pg {
namespace {

bool is_prepared(TransactionId xid) {
    return !TransactionIdIsCurrentTransactionId(xid) && TransactionIdIsInProgress(xid) &&
           !TransactionIdIsActive(xid);
}

// Of an update the new version counts, of a deletion the row.
bool was_replaced(TupleTableSlot* slot) {
    const HeapTuple tuple = ExecFetchSlotHeapTuple(slot, false, nullptr);
    return !ItemPointerEquals(&tuple->t_data->t_ctid, &tuple->t_self);
}

// The transaction that is at work on the row, if it is a prepared one.
TransactionId prepared_writer(const SnapshotData& dirty, TupleTableSlot* slot) {
    TransactionId writer = dirty.xmin;
    if (!TransactionIdIsValid(writer) && TransactionIdIsValid(dirty.xmax) && !was_replaced(slot))
        writer = dirty.xmax;
    if (!TransactionIdIsValid(writer)) return InvalidTransactionId;
    const TransactionId top = SubTransGetTopmostTransaction(writer);
    return is_prepared(top) ? top : InvalidTransactionId;
}

}  // namespace

void visit_prepared_claims(void (*visit)(const PreparedClaim& claim, void* data), void* data) {
    if (max_prepared_xacts == 0 || RecoveryInProgress()) return;
    Relation relation = open_table(Table::record, AccessShareLock);
    SnapshotData dirty;
    InitDirtySnapshot(dirty);
    TableScanDesc scan = compat::begin_table_scan(relation, &dirty);
    TupleTableSlot* slot = table_slot_create(relation, nullptr);
    while (table_scan_getnextslot(scan, ForwardScanDirection, slot)) {
        CHECK_FOR_INTERRUPTS();
        const TransactionId xid = prepared_writer(dirty, slot);
        if (!TransactionIdIsValid(xid)) continue;
        const Glance row = glance(slot);
        visit({xid, row.created, row.scope_id, row.attempt, row.tenant, row.key}, data);
    }
    ExecDropSingleTupleTableSlot(slot);
    table_endscan(scan);
    table_close(relation, AccessShareLock);
}

TransactionId prepared_transaction(const VirtualTransactionId& vxid) {
    bool ambiguous = false;
    const TransactionId xid = TwoPhaseGetXidByVirtualXID(vxid, &ambiguous);
    return ambiguous ? InvalidTransactionId : xid;
}

}  // namespace idem::pg
