#include "pg/shared/held_claims.hpp"

#include "pg/store/record.hpp"
#include "pg/store/table.hpp"

extern "C" {
#include "access/twophase.h"
}

namespace idem::pg {
namespace {

struct alignas(PG_CACHE_LINE_SIZE) Slot {
    int st_changecount;                // as the server's macros call it
    VirtualTransactionId transaction;  // not valid: no claim is noted
    Oid database;
    HeldClaim claim;  // its texts are these:
    char tenant[core::max_tenant_bytes];
    char key[core::max_key_bytes];
};

constinit Slot* slots = nullptr;

Slot& my_slot() {
    return slots[backend_number()];
}

// What a slot has room for, in whole characters. The texts of a row are longer than calls accept
// when a restore or a subscription has converted them to another encoding.
std::string_view clipped(std::string_view text, std::size_t size) {
    if (text.size() <= size) return text;
    const int length =
        pg_mbcliplen(text.data(), static_cast<int>(text.size()), static_cast<int>(size));
    return text.substr(0, static_cast<std::size_t>(length));
}

template <std::size_t size>
std::string_view copy(std::string_view from, char (&to)[size]) {
    Assert(from.size() <= size);
    std::copy(from.begin(), from.end(), to);
    return {to, from.size()};
}

void read_slot(const Slot& slot, Slot& copied) {
    for (;;) {
        int before;
        int after;
        pgstat_begin_read_activity(&slot, before);
        copied = slot;
        pgstat_end_read_activity(&slot, after);
        if (pgstat_read_activity_complete(before, after)) break;
        CHECK_FOR_INTERRUPTS();
    }
    copied.claim.tenant = {copied.tenant, copied.claim.tenant.size()};
    copied.claim.key = {copied.key, copied.claim.key.size()};
}

// The transaction that is changing the row, if it is a prepared one, which is in progress and has
// no process. An update shows in the new version; a deletion shows in the row itself.
TransactionId prepared_writer(const SnapshotData& dirty, TupleTableSlot* slot) {
    TransactionId writer = dirty.xmin;
    if (!TransactionIdIsValid(writer) && TransactionIdIsValid(dirty.xmax) && !has_successor(slot))
        writer = dirty.xmax;
    if (!TransactionIdIsValid(writer)) return InvalidTransactionId;
    const TransactionId top = SubTransGetTopmostTransaction(writer);
    const bool prepared = !TransactionIdIsCurrentTransactionId(top) &&
                          TransactionIdIsInProgress(top) && BackendXidGetPid(top) == 0;
    return prepared ? top : InvalidTransactionId;
}

}  // namespace

void publish_claim(const HeldClaim& claim) {
    Assert(claim.keys > 0);
    Slot& slot = my_slot();
    const std::string_view tenant = clipped(claim.tenant, sizeof(slot.tenant));
    const std::string_view key = clipped(claim.key, sizeof(slot.key));
    PGSTAT_BEGIN_WRITE_ACTIVITY(&slot);
    GET_VXID_FROM_PGPROC(slot.transaction, *MyProc);
    slot.database = MyDatabaseId;
    slot.claim = claim;
    slot.claim.tenant = copy(tenant, slot.tenant);
    slot.claim.key = copy(key, slot.key);
    PGSTAT_END_WRITE_ACTIVITY(&slot);
}

void publish_no_claim() {
    Slot& slot = my_slot();
    PGSTAT_BEGIN_WRITE_ACTIVITY(&slot);
    slot.transaction.localTransactionId = InvalidLocalTransactionId;
    PGSTAT_END_WRITE_ACTIVITY(&slot);
}

void show_running_claims(ShowClaim show, void* to) {
    for (int i = 0; slots != nullptr && i < MaxBackends; ++i) {
        Slot slot;
        read_slot(slots[i], slot);
        if (!VirtualTransactionIdIsValid(slot.transaction) || slot.database != MyDatabaseId)
            continue;
        const PGPROC* process = compat::process_running(slot.transaction);
        if (process == nullptr) continue;
        slot.claim.pid = process->pid;
        show(slot.claim, to);
    }
}

void show_prepared_claims(ShowClaim show, void* to) {
    if (max_prepared_xacts == 0 || RecoveryInProgress()) return;
    SnapshotData dirty;
    InitDirtySnapshot(dirty);
    scan_table(Table::record, &dirty, [&](TupleTableSlot* slot) {
        const TransactionId xid = prepared_writer(dirty, slot);
        if (!TransactionIdIsValid(xid)) return;
        const Record row(slot);
        show({.scope_id = row.scope_id(),
              .attempt = row.attempt(),
              .since = row.created(),
              .tenant = row.tenant(),
              .key = row.key(),
              .as = HeldAs::prepared,
              .transaction = xid},
             to);
    });
}

Size held_claims_size() {
    return mul_size(sizeof(Slot), static_cast<Size>(MaxBackends));
}

void attach_held_claims(void* memory, LWLockPadded*, bool found) {
    slots = static_cast<Slot*>(memory);
    if (!found) std::fill_n(slots, MaxBackends, Slot{});
}

}  // namespace idem::pg
