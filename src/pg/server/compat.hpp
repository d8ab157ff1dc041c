// The differences between PostgreSQL versions: one small function for each, so that call sites have
// no #if of their own.
#pragma once

#include "pg/server/postgres.hpp"

extern "C" {
#include "access/nbtree.h"
#include "nodes/nodeFuncs.h"
#include "parser/parse_relation.h"
}

namespace idem::pg::compat {

// Functions of PostgreSQL 16, and what they are in the version before it.
#if PG_VERSION_NUM < 160000
inline AclResult object_aclcheck(Oid catalog, Oid object, Oid role, AclMode mode) {
    Assert(catalog == NamespaceRelationId || catalog == ProcedureRelationId);
    return catalog == NamespaceRelationId ? pg_namespace_aclcheck(object, role, mode)
                                          : pg_proc_aclcheck(object, role, mode);
}

inline bool object_ownercheck([[maybe_unused]] Oid catalog, Oid object, Oid role) {
    Assert(catalog == RelationRelationId);
    return pg_class_ownercheck(object, role);
}

inline bool member_can_set_role(Oid member, Oid role) {
    return is_member_of_role(member, role);
}

inline void check_can_set_role(Oid member, Oid role) {
    check_is_member_of_role(member, role);
}

inline LocalPgBackendStatus* pgstat_get_local_beentry_by_index(int i) {
    return pgstat_fetch_stat_local_beentry(i);
}
#else
using ::check_can_set_role;
using ::member_can_set_role;
using ::object_aclcheck;
using ::object_ownercheck;
using ::pgstat_get_local_beentry_by_index;
#endif

inline bool is_finite([[maybe_unused]] const Interval& interval) {
#if PG_VERSION_NUM >= 170000
    return !INTERVAL_NOT_FINITE(&interval);
#else
    return true;
#endif
}

inline constexpr bool has_transaction_timeout = PG_VERSION_NUM >= 170000;

inline Oid primary_key_of(Relation relation) {
#if PG_VERSION_NUM >= 180000
    return RelationGetPrimaryKeyIndex(relation, false);
#else
    return RelationGetPrimaryKeyIndex(relation);
#endif
}

inline IndexScanDesc begin_index_scan(Relation heap, Relation index, Snapshot snapshot, int keys) {
#if PG_VERSION_NUM >= 190000
    return index_beginscan(heap, index, snapshot, nullptr, keys, 0, SO_NONE);
#elif PG_VERSION_NUM >= 180000
    return index_beginscan(heap, index, snapshot, nullptr, keys, 0);
#else
    return index_beginscan(heap, index, snapshot, keys, 0);
#endif
}

// The root of a btree, locked for reading; an invalid buffer if the index is empty.
inline Buffer btree_root(Relation index, [[maybe_unused]] Relation table) {
#if PG_VERSION_NUM >= 160000
    return _bt_getroot(index, table, BT_READ);
#else
    return _bt_getroot(index, BT_READ);
#endif
}

// Puts the first row version behind an index entry that the snapshot sees into the slot. The
// entry's page is pinned.
inline bool fetch_by_entry(Relation table, ItemPointerData entry, Snapshot snapshot,
                           TupleTableSlot* slot) {
#if PG_VERSION_NUM >= 190000
    IndexFetchTableData* fetch = table_index_fetch_begin(table, SO_NONE);
#else
    IndexFetchTableData* fetch = table_index_fetch_begin(table);
#endif
    bool more = false;
    const bool seen = table_index_fetch_tuple(fetch, &entry, snapshot, slot, &more, nullptr);
    table_index_fetch_end(fetch);
    return seen;
}

// The wait event that pg_stat_activity shows. PostgreSQL 17 and later show its name.
inline std::uint32_t wait_event([[maybe_unused]] const char* name) {
#if PG_VERSION_NUM >= 170000
    return WaitEventExtensionNew(name);
#else
    return PG_WAIT_EXTENSION;
#endif
}

enum class Waiting : bool { no, yes };

// Which indexes need an entry for a new row version. Since PostgreSQL 16, a heap-only update may
// change columns of a summarizing index (BRIN). Any other index then has an entry for the row
// already, and must not get a second one.
enum class IndexEntries { none, summarizing, all };

#if PG_VERSION_NUM >= 160000
inline IndexEntries entries_after(TU_UpdateIndexes update) {
    if (update == TU_None) return IndexEntries::none;
    return update == TU_Summarizing ? IndexEntries::summarizing : IndexEntries::all;
}
#else
inline IndexEntries entries_after(bool update) {
    return update ? IndexEntries::all : IndexEntries::none;
}
#endif

// Replaces the row at tid in the heap alone; update_row() in pg/store/table adds the index entries.
// Refuses an update that cannot be published, as the executor does: it would stop every
// subscription. entries is meaningful after TM_Ok only.
inline TM_Result update_tuple(Relation relation, ItemPointer tid, TupleTableSlot* slot,
                              IndexEntries& entries) {
    CheckCmdReplicaIdentity(relation, CMD_UPDATE);
    TM_FailureData failure;
    LockTupleMode mode;
#if PG_VERSION_NUM >= 160000
    TU_UpdateIndexes update = TU_None;
#else
    bool update = false;
#endif
    const TM_Result result =
        table_tuple_update(relation, tid, slot, GetCurrentCommandId(true),
#if PG_VERSION_NUM >= 190000
                           0,
#endif
                           InvalidSnapshot, InvalidSnapshot, true, &failure, &mode, &update);
    entries = entries_after(update);
    return result;
}

// Deletes the row in the heap alone, with the same check.
inline TM_Result delete_tuple(Relation relation, ItemPointer tid, Waiting waiting) {
    CheckCmdReplicaIdentity(relation, CMD_DELETE);
    const bool wait = waiting == Waiting::yes;
    const CommandId command = GetCurrentCommandId(true);
    TM_FailureData failure;
#if PG_VERSION_NUM >= 190000
    return table_tuple_delete(relation, tid, command, 0, SnapshotSelf, InvalidSnapshot, wait,
                              &failure);
#else
    return table_tuple_delete(relation, tid, command, SnapshotSelf, InvalidSnapshot, wait, &failure,
                              false);
#endif
}

// Adds the entries in all indexes that are ready for inserts, or in the summarizing ones only.
// Returns the indexes of deferrable constraints that the row may violate.
inline List* insert_index_entries(ResultRelInfo* target, TupleTableSlot* slot, EState* estate,
                                  [[maybe_unused]] bool only_summarizing) {
#if PG_VERSION_NUM >= 190000
    return ExecInsertIndexTuples(target, estate, only_summarizing ? EIIT_ONLY_SUMMARIZING : 0, slot,
                                 NIL, nullptr);
#elif PG_VERSION_NUM >= 160000
    return ExecInsertIndexTuples(target, slot, estate, false, false, nullptr, NIL,
                                 only_summarizing);
#else
    return ExecInsertIndexTuples(target, slot, estate, false, false, nullptr, NIL);
#endif
}

// The table as the target of a statement that writes all its columns, with its triggers.
inline ResultRelInfo* begin_statement(EState* estate, Relation table) {
    MemoryContext before = MemoryContextSwitchTo(estate->es_query_cxt);
    Bitmapset* columns = nullptr;
    for (int i = 1; i <= RelationGetNumberOfAttributes(table); ++i)
        columns = bms_add_member(columns, i - FirstLowInvalidHeapAttributeNumber);
    auto* entry = makeNode(RangeTblEntry);
    entry->rtekind = RTE_RELATION;
    entry->relid = RelationGetRelid(table);
    entry->relkind = table->rd_rel->relkind;
    entry->rellockmode = RowExclusiveLock;
#if PG_VERSION_NUM >= 160000
    List* permissions = NIL;
    addRTEPermissionInfo(&permissions, entry)->updatedCols = columns;
#if PG_VERSION_NUM >= 180000
    ExecInitRangeTable(estate, list_make1(entry), permissions, bms_make_singleton(1));
#else
    ExecInitRangeTable(estate, list_make1(entry), permissions);
#endif
#else
    entry->updatedCols = columns;
    ExecInitRangeTable(estate, list_make1(entry));
#endif
    auto* target = makeNode(ResultRelInfo);
    InitResultRelInfo(target, table, 1, nullptr, 0);
    estate->es_opened_result_relations = lappend(NIL, target);
    estate->es_output_cid = GetCurrentCommandId(true);
    MemoryContextSwitchTo(before);
    return target;
}

// Whether what the server calls a walker finds what it looks for below the node of an expression.
inline bool any_child(Node* node, bool (*walker)(Node*, void*), void* context) {
#if PG_VERSION_NUM >= 160000
    return expression_tree_walker(node, walker, context);
#else
    auto* untyped = reinterpret_cast<void (*)()>(walker);
    return expression_tree_walker(node, reinterpret_cast<bool (*)()>(untyped), context);
#endif
}

// A hash table in shared memory that never grows.
inline HTAB* shared_hash(const char* name, int entries, HASHCTL& control) {
#if PG_VERSION_NUM >= 190000
    return ShmemInitHash(name, entries, &control, HASH_ELEM | HASH_BLOBS);
#else
    return ShmemInitHash(name, entries, entries, &control, HASH_ELEM | HASH_BLOBS);
#endif
}

// Whether this backend holds the lock in exactly this mode.
inline bool holds_lock(const LOCKTAG& tag, LOCKMODE mode) {
#if PG_VERSION_NUM >= 170000
    return LockHeldByMe(&tag, mode, false);
#else
    return LockHeldByMe(&tag, mode);
#endif
}

// The process that runs this transaction; NULL when the transaction has ended or is prepared.
inline PGPROC* process_running(const VirtualTransactionId& vxid) {
#if PG_VERSION_NUM >= 170000
    PGPROC* process = ProcNumberGetProc(vxid.procNumber);
    const bool same =
        process != nullptr && process->vxid.lxid == vxid.localTransactionId && process->pid != 0;
#else
    PGPROC* process = BackendIdGetProc(vxid.backendId);
    const bool same =
        process != nullptr && process->lxid == vxid.localTransactionId && process->pid != 0;
#endif
    return same ? process : nullptr;
}

// Builds a jsonb value from the tokens that a walk over it would return.
class JsonbBuilder {
  public:
#if PG_VERSION_NUM >= 190000
    void push(JsonbIteratorToken token, JsonbValue* value) {
        pushJsonbValue(&state_, token, value);
    }
    Jsonb* finish() {
        return JsonbValueToJsonb(state_.result);
    }

  private:
    JsonbInState state_{};
#else
    void push(JsonbIteratorToken token, JsonbValue* value) {
        result_ = pushJsonbValue(&state_, token, value);
    }
    Jsonb* finish() {
        return JsonbValueToJsonb(result_);
    }

  private:
    JsonbParseState* state_ = nullptr;
    JsonbValue* result_ = nullptr;
#endif
};

}  // namespace idem::pg::compat

// From PostgreSQL 18 on, a library has a name and a version: see pg_get_loaded_modules().
#if PG_VERSION_NUM < 180000
#define PG_MODULE_MAGIC_EXT(...) PG_MODULE_MAGIC
#endif
