#include "pg/table.hpp"

namespace idem::pg {
namespace {

constexpr const char* schema_name = "idem";
constexpr std::array<const char*, table_count> table_names = {
    "record", "watermark", "scope", "dropped_scope", "secret", "sweep", "scope_id"};

constinit std::array<Oid, table_count> oids{};
constinit std::array<void (*)(), table_count> forgetters{};

void forget_table(Datum, Oid relation) {
    for (std::size_t i = 0; i < table_count; ++i) {
        if (relation != InvalidOid && relation != oids[i]) continue;
        oids[i] = InvalidOid;
        if (forgetters[i] != nullptr) forgetters[i]();
    }
}

Oid find_table(const char* name) {
    const Oid schema = get_namespace_oid(schema_name, true);
    return OidIsValid(schema) ? get_relname_relid(name, schema) : InvalidOid;
}

// Nothing to evaluate: the entry is made of the row's columns.
bool is_plain(const IndexInfo* info) {
    return info->ii_Expressions == NIL && info->ii_Predicate == NIL &&
           info->ii_ExclusionOps == nullptr;
}

// False when a unique index holds, or may come to hold, the same key.
bool add_plain_entry(Relation relation, Relation index, IndexInfo* info, TupleTableSlot* slot,
                     bool tolerate_duplicates) {
    Datum values[INDEX_MAX_KEYS];
    bool nulls[INDEX_MAX_KEYS];
    FormIndexDatum(info, slot, nullptr, values, nulls);
    const bool unique = index->rd_index->indisunique;
    const IndexUniqueCheck check = !unique               ? UNIQUE_CHECK_NO
                                   : tolerate_duplicates ? UNIQUE_CHECK_PARTIAL
                                                         : UNIQUE_CHECK_YES;
    const bool is_unique =
        index_insert(index, values, nulls, &slot->tts_tid, relation, check, false, info);
    return is_unique || check != UNIQUE_CHECK_PARTIAL;
}

// idem's own indexes are all plain; one with expressions or a predicate is the superuser's
// addition, and the executor knows how to fill it.
void add_computed_entries(Relation relation, TupleTableSlot* slot) {
    EState* estate = CreateExecutorState();
    ResultRelInfo* target = makeNode(ResultRelInfo);
    InitResultRelInfo(target, relation, 0, nullptr, 0);
    ExecOpenIndices(target, false);
    for (int i = 0; i < target->ri_NumIndices; ++i)
        if (is_plain(target->ri_IndexRelationInfo[i]))
            target->ri_IndexRelationInfo[i]->ii_ReadyForInserts = false;  // already has its entry
    compat::insert_index_entries(target, slot, estate);
    ExecCloseIndices(target);
    FreeExecutorState(estate);
}

}  // namespace

void init_tables() {
    CacheRegisterRelcacheCallback(forget_table, 0);
}

void on_invalidation(Table table, void (*forget)()) {
    forgetters[static_cast<std::size_t>(table)] = forget;
}

Oid find_table_oid(Table table) {
    const auto index = static_cast<std::size_t>(table);
    if (!OidIsValid(oids[index])) oids[index] = find_table(table_names[index]);
    return oids[index];
}

Oid table_oid(Table table) {
    const Oid oid = find_table_oid(table);
    if (!OidIsValid(oid))
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("extension \"idem\" is not installed in this database"),
                        errdetail("Table \"%s.%s\" does not exist.", schema_name,
                                  table_names[static_cast<std::size_t>(table)]),
                        errhint("Run CREATE EXTENSION idem.")));
    return oid;
}

Relation open_table(Table table, LOCKMODE mode) {
    return table_open(table_oid(table), mode);
}

bool add_index_entries(Relation relation, TupleTableSlot* slot, bool tolerate_duplicates) {
    bool duplicate = false;
    bool all_plain = true;
    List* indexes = RelationGetIndexList(relation);
    for (int i = 0; i < list_length(indexes); ++i) {
        Relation index = index_open(list_nth_oid(indexes, i), RowExclusiveLock);
        IndexInfo* info = BuildIndexInfo(index);
        if (!is_plain(info))
            all_plain = false;
        else if (info->ii_ReadyForInserts)
            duplicate |= !add_plain_entry(relation, index, info, slot, tolerate_duplicates);
        index_close(index, NoLock);
    }
    list_free(indexes);
    if (!all_plain) add_computed_entries(relation, slot);
    return duplicate;
}

bool insert_row(Relation relation, TupleTableSlot* slot, bool tolerate_duplicates) {
    table_tuple_insert(relation, slot, GetCurrentCommandId(true), 0, nullptr);
    return add_index_entries(relation, slot, tolerate_duplicates);
}

TableScanDesc scan_blocks(Relation relation, BlockNumber first, BlockNumber size) {
    TableScanDesc scan = table_beginscan_strat(relation, SnapshotSelf, 0, nullptr, true, false);
    heap_setscanlimits(scan, first, size);
    return scan;
}

bool written_here(TupleTableSlot* slot) {
    bool null;
    const Datum xmin = slot_getsysattr(slot, MinTransactionIdAttributeNumber, &null);
    return TransactionIdIsCurrentTransactionId(DatumGetTransactionId(xmin));
}

void fill_row(TupleTableSlot* slot, std::span<const Datum> values, std::span<const bool> nulls) {
    ExecClearTuple(slot);
    const auto columns = static_cast<std::size_t>(slot->tts_tupleDescriptor->natts);
    const std::size_t given = std::min(columns, values.size());
    std::fill_n(slot->tts_isnull, columns, true);
    std::copy_n(values.begin(), given, slot->tts_values);
    std::copy_n(nulls.begin(), given, slot->tts_isnull);
    (void)ExecStoreVirtualTuple(slot);
}

TupleTableSlot* new_row(Relation relation, std::span<const Datum> values,
                        std::span<const bool> nulls) {
    TupleTableSlot* slot = table_slot_create(relation, nullptr);
    fill_row(slot, values, nulls);
    return slot;
}

}  // namespace idem::pg
