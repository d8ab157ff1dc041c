// The table idem.scope: its columns, and the scan that both the cache and the administration make.
#pragma once

#include "pg/boundary.hpp"
#include "pg/table.hpp"

namespace idem::pg::scope_row {

enum Column {
    column_id,
    column_name,
    column_owner,
    column_ttl,
    column_lease,
    column_wait,
    column_request_required,
    column_request_exclude,
    column_tenant_required,
    column_reject_stale_keys,
    column_max_attempts,
    column_claims_per_minute,
    column_weak_keys,
    column_store_response,
    column_response_exclude,
    column_transient_sqlstates,  // since 0.3.0
    columns
};

// Until ALTER EXTENSION idem UPDATE is run, the table has the columns of an earlier release.
inline bool has_column(TupleDesc table, int which) {
    return which < table->natts;
}

inline std::optional<Datum> column(TupleTableSlot* slot, int which) {
    if (!has_column(slot->tts_tupleDescriptor, which)) return std::nullopt;
    bool null;
    const Datum value = slot_getattr(slot, which + 1, &null);
    return null ? std::nullopt : std::optional(value);
}

struct WithName {
    std::string_view name;
    bool operator()(TupleTableSlot* slot) const {
        return view_of(DatumGetTextPP(*column(slot, column_name))) == name;
    }
};

struct WithId {
    std::int32_t id;
    bool operator()(TupleTableSlot* slot) const {
        return DatumGetInt32(*column(slot, column_id)) == id;
    }
};

// Hands the row that matches to use(), under a snapshot of its own: the transaction's may be older
// than the scope. False when there is none.
template <class Match, class Use>
bool scan_for(Match match, Use use) {
    Relation relation = open_table(Table::scope, AccessShareLock);
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    TableScanDesc scan = compat::begin_table_scan(relation, snapshot);
    TupleTableSlot* slot = table_slot_create(relation, nullptr);
    bool found = false;
    while (!found && table_scan_getnextslot(scan, ForwardScanDirection, slot)) {
        found = match(slot);
        if (found) use(slot);
    }
    ExecDropSingleTupleTableSlot(slot);
    table_endscan(scan);
    UnregisterSnapshot(snapshot);
    table_close(relation, AccessShareLock);
    return found;
}

}  // namespace idem::pg::scope_row
