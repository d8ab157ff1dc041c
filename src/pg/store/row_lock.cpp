#include "pg/store/row_lock.hpp"

extern "C" {
#include "access/multixact.h"
}

namespace idem::pg {
namespace {

bool works_elsewhere(TransactionId xid) {
    return !TransactionIdIsCurrentTransactionId(xid) && TransactionIdIsInProgress(xid);
}

TransactionId member_elsewhere(MultiXactId multi, bool only_locked, RowChange change) {
    MultiXactMember* members = nullptr;
    const int count = GetMultiXactIdMembers(multi, &members, false, only_locked);
    for (int i = 0; i < count; ++i) {
        const bool on_key_only = members[i].status == MultiXactStatusForKeyShare;
        if ((change == RowChange::deletion || !on_key_only) && works_elsewhere(members[i].xid))
            return members[i].xid;
    }
    return InvalidTransactionId;
}

}  // namespace

TM_Result try_lock_row(Relation relation, ItemPointerData tid, RowChange change) {
    Assert(ItemPointerIsValid(&tid));
    TM_FailureData failure;
    TupleTableSlot* slot = table_slot_create(relation, nullptr);
    const TM_Result result = table_tuple_lock(
        relation, &tid, SnapshotSelf, slot, GetCurrentCommandId(true),
        change == RowChange::deletion ? LockTupleExclusive : LockTupleNoKeyExclusive, LockWaitSkip,
        0, &failure);
    ExecDropSingleTupleTableSlot(slot);
    return result;
}

TransactionId transaction_at(Relation relation, ItemPointerData tid, RowChange change) {
    HeapTupleData tuple;
    Buffer buffer;
    tuple.t_self = tid;
    if (!heap_fetch(relation, SnapshotAny, &tuple, &buffer, false)) return InvalidTransactionId;
    LockBuffer(buffer, BUFFER_LOCK_SHARE);
    const TransactionId xmax = HeapTupleHeaderGetRawXmax(tuple.t_data);
    const std::uint16_t mask = tuple.t_data->t_infomask;
    UnlockReleaseBuffer(buffer);

    if ((mask & HEAP_XMAX_INVALID) != 0) return InvalidTransactionId;
    const bool only_locked = HEAP_XMAX_IS_LOCKED_ONLY(mask);
    if ((mask & HEAP_XMAX_IS_MULTI) != 0) return member_elsewhere(xmax, only_locked, change);
    const bool on_key_only = only_locked && HEAP_XMAX_IS_KEYSHR_LOCKED(mask);
    if (change == RowChange::update && on_key_only) return InvalidTransactionId;
    return works_elsewhere(xmax) ? xmax : InvalidTransactionId;
}

}  // namespace idem::pg
