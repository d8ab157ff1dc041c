#include "pg/keyed_table.hpp"

#include "pg/compat.hpp"
#include "pg/report.hpp"

namespace idem::pg {

pg_uuid_t uuid_of(const core::Digest& digest) {
    static_assert(sizeof(pg_uuid_t) == sizeof(core::Digest));
    pg_uuid_t uuid;
    memcpy(uuid.data, digest.data(), digest.size());
    return uuid;
}

KeyedTable::KeyedTable(Table table, LOCKMODE mode, LOCKMODE release)
    : table_(open_table(table, mode)), mode_(mode), release_(release) {}

Relation KeyedTable::open_index() const {
    const Oid primary_key = compat::primary_key_of(table_);
    if (!OidIsValid(primary_key)) report::no_digest_index(RelationGetRelationName(table_));
    Relation index = index_open(primary_key, mode_);
    if (!is_digest_index(index)) report::no_digest_index(RelationGetRelationName(table_));
    return index;
}

DigestScan::DigestScan(const KeyedTable& table) : table_(table), index_(table.open_index()) {
    InitDirtySnapshot(dirty_);
    scan_ = compat::begin_index_scan(table_.table(), index_, &dirty_, 1);
}

void DigestScan::end() {
    index_endscan(scan_);
    if (slot_ != nullptr) ExecDropSingleTupleTableSlot(slot_);
    table_.close_index(index_);
}

void DigestScan::seek(const core::Digest& digest) {
    digest_ = uuid_of(digest);
    restart();
}

void DigestScan::restart() {
    ScanKeyData key;
    ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_UUID_EQ, UUIDPGetDatum(&digest_));
    index_rescan(scan_, &key, 1, nullptr, 0);
    entries_ = 0;
}

// As index_getnext_slot(), but most probes find no entry, and need no slot.
bool DigestScan::next() {
    for (;;) {
        if (!scan_->xs_heap_continue) {
            const ItemPointerData* entry = index_getnext_tid(scan_, ForwardScanDirection);
            if (entry == nullptr) return false;
            entries_ = hash_combine64(
                entries_, hash_bytes_extended(reinterpret_cast<const unsigned char*>(entry),
                                              sizeof *entry, 0));
        }
        if (slot_ == nullptr) slot_ = table_slot_create(table_.table(), nullptr);
        if (index_fetch_heap(scan_, slot_)) return true;
    }
}

// Without the key lock the row may move under the scan: its new version gets an index entry when
// the page was read, and the old one is dead when its turn comes. Then there are other entries the
// next time; when there are not, nothing was missed.
bool DigestScan::find(const core::Digest& digest) {
    bool nothing_missed = false;
    for (std::uint64_t before = 0;; before = entries_) {
        bool inserting = false;
        CHECK_FOR_INTERRUPTS();
        seek(digest);
        while (next()) {
            if (nothing_missed || presence() != core::Presence::inserting) return true;
            inserting = true;
        }
        nothing_missed = entries_ == before;
        if (nothing_missed && !inserting) return false;
    }
}

core::Presence DigestScan::presence() const {
    if (TransactionIdIsValid(dirty_.xmin)) return core::Presence::inserting;
    if (written_here(slot_)) return core::Presence::own;
    if (TransactionIdIsValid(dirty_.xmax)) return core::Presence::deleting;
    return core::Presence::committed;
}

bool DigestScan::in_snapshot() const {
    return !IsolationUsesXactSnapshot() ||
           table_tuple_satisfies_snapshot(table_.table(), slot_, GetTransactionSnapshot());
}

Work DigestScan::working() const {
    const bool inserting = TransactionIdIsValid(dirty_.xmin);
    return {inserting ? dirty_.xmin : dirty_.xmax, inserting ? dirty_.speculativeToken : 0};
}

// The pins go: nobody shall wait for our wait.
void DigestScan::let_go() {
    ExecClearTuple(slot_);
    restart();
}

bool DigestScan::wait(const WaitBound& bound) {
    const Work work = working();
    let_go();
    return bound.wait_for(work);
}

void DigestScan::wait() {
    const Work work = working();
    ItemPointerData tid = slot_->tts_tid;
    let_go();
    if (work.speculative_token != 0)
        SpeculativeInsertionWait(work.xid, work.speculative_token);
    else
        XactLockTableWait(work.xid, table_.table(), &tid, XLTW_InsertIndex);
}

}  // namespace idem::pg
