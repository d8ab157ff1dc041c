#include "pg/census.hpp"

#include "pg/compat.hpp"
#include "pg/record.hpp"
#include "pg/table.hpp"

namespace idem::pg {
namespace {

struct alignas(PG_CACHE_LINE_SIZE) Slot {
    pg_atomic_uint32 changes;  // odd while it is being written
    HeldClaim claim;
};

constinit Slot* slots = nullptr;

Slot& my_slot() {
    const auto number = MyProc - ProcGlobal->allProcs;
    Assert(number >= 0 && number < MaxBackends);
    return slots[number];
}

void begin_change(Slot& slot) {
    Assert(pg_atomic_read_u32(&slot.changes) % 2 == 0);
    pg_atomic_write_u32(&slot.changes, pg_atomic_read_u32(&slot.changes) + 1);
    pg_write_barrier();
}

void end_change(Slot& slot) {
    Assert(pg_atomic_read_u32(&slot.changes) % 2 == 1);
    pg_write_barrier();
    pg_atomic_write_u32(&slot.changes, pg_atomic_read_u32(&slot.changes) + 1);
}

std::uint8_t copy(std::string_view from, char* to) {
    std::copy(from.begin(), from.end(), to);
    return static_cast<std::uint8_t>(from.size());
}

// Returns false when the owner was writing.
bool try_read(Slot& slot, HeldClaim& claim) {
    const std::uint32_t before = pg_atomic_read_u32(&slot.changes);
    pg_read_barrier();
    claim = slot.claim;
    pg_read_barrier();
    return before % 2 == 0 && before == pg_atomic_read_u32(&slot.changes);
}

// A prepared transaction is in progress and has no process. top is not a subtransaction.
bool is_prepared(TransactionId top) {
    return !TransactionIdIsCurrentTransactionId(top) && TransactionIdIsInProgress(top) &&
           BackendXidGetPid(top) == 0;
}

// An update shows in the new version; a deletion shows in the row itself.
bool was_replaced(TupleTableSlot* slot) {
    const HeapTuple tuple = ExecFetchSlotHeapTuple(slot, false, nullptr);
    return !ItemPointerEquals(&tuple->t_data->t_ctid, &tuple->t_self);
}

// The transaction that is changing the row, if it is a prepared one.
TransactionId prepared_writer(const SnapshotData& dirty, TupleTableSlot* slot) {
    TransactionId writer = dirty.xmin;
    if (!TransactionIdIsValid(writer) && TransactionIdIsValid(dirty.xmax) && !was_replaced(slot))
        writer = dirty.xmax;
    if (!TransactionIdIsValid(writer)) return InvalidTransactionId;
    const TransactionId top = SubTransGetTopmostTransaction(writer);
    return is_prepared(top) ? top : InvalidTransactionId;
}

}  // namespace

bool census_available() {
    return slots != nullptr;
}

void note_claim(std::int32_t scope_id, std::string_view tenant, std::string_view key,
                std::int32_t attempt, TimestampTz since, HeldAs as, std::int32_t keys) {
    if (slots == nullptr) return;
    Slot& slot = my_slot();
    Assert(tenant.size() <= core::max_tenant_bytes && key.size() <= core::max_key_bytes);
    Assert(keys > 0);
    begin_change(slot);
    GET_VXID_FROM_PGPROC(slot.claim.transaction, *MyProc);
    slot.claim.database = MyDatabaseId;
    slot.claim.scope_id = scope_id;
    slot.claim.attempt = attempt;
    slot.claim.since = since;
    slot.claim.as = as;
    slot.claim.keys = keys;
    slot.claim.tenant_size = copy(tenant, slot.claim.tenant_bytes);
    slot.claim.key_size = copy(key, slot.claim.key_bytes);
    end_change(slot);
}

void note_progress(HeldAs as, std::int32_t keys) {
    if (slots == nullptr) return;
    Assert(keys > 0);
    Slot& slot = my_slot();
    begin_change(slot);
    slot.claim.as = as;
    slot.claim.keys = keys;
    end_change(slot);
}

void note_no_claim() {
    if (slots == nullptr) return;
    Slot& slot = my_slot();
    begin_change(slot);
    slot.claim.transaction.localTransactionId = InvalidLocalTransactionId;
    end_change(slot);
}

int backends_in_census() {
    return slots == nullptr ? 0 : MaxBackends;
}

int read_held_claim(int backend, HeldClaim& claim) {
    Assert(backend >= 0 && backend < backends_in_census());
    while (!try_read(slots[backend], claim)) CHECK_FOR_INTERRUPTS();
    if (!VirtualTransactionIdIsValid(claim.transaction) || claim.database != MyDatabaseId) return 0;
    const PGPROC* process = compat::process_running(claim.transaction);
    return process == nullptr ? 0 : process->pid;
}

Size census_size() {
    return mul_size(sizeof(Slot), static_cast<Size>(MaxBackends));
}

void attach_census(void* memory, LWLockPadded*, bool found) {
    slots = static_cast<Slot*>(memory);
    if (found) return;
    for (int i = 0; i < MaxBackends; ++i) {
        pg_atomic_init_u32(&slots[i].changes, 0);
        slots[i].claim.transaction.localTransactionId = InvalidLocalTransactionId;
    }
}

void visit_prepared_claims(void (*visit)(const PreparedClaim& claim, void* data), void* data) {
    if (max_prepared_xacts == 0 || RecoveryInProgress()) return;
    SnapshotData dirty;
    InitDirtySnapshot(dirty);
    scan_table(Table::record, &dirty, [&](TupleTableSlot* slot) {
        const TransactionId xid = prepared_writer(dirty, slot);
        if (!TransactionIdIsValid(xid)) return;
        const RecordRow row(slot);
        const RowKey key = row.key();
        visit({xid, row.created(), row.scope_id(), row.attempt(), row.tenant(), key.view()}, data);
    });
}

TransactionId prepared_transaction(const VirtualTransactionId& vxid) {
    bool ambiguous = false;
    const TransactionId xid = TwoPhaseGetXidByVirtualXID(vxid, &ambiguous);
    return ambiguous ? InvalidTransactionId : xid;
}

}  // namespace idem::pg
