#include "pg/table.hpp"

#include "pg/report.hpp"

namespace idem::pg {
namespace {

constexpr const char* schema_name = "idem";
constexpr std::array<const char*, table_count> table_names = {
    "record", "watermark", "scope", "dropped_scope", "secret", "sweep", "scope_id"};

constinit std::array<Oid, table_count> oids{};
constinit std::array<void (*)(), table_count> forgetters{};

// Whether a message about the relation, InvalidOid for all, may be about the table. While its OID
// is not known, each may be: a message that arrives as the table is opened makes the OID unknown,
// and the next must reach the cache that was filled then.
bool may_be(Oid relation, Oid table) {
    return !OidIsValid(relation) || !OidIsValid(table) || relation == table;
}

void forget_table(Datum, Oid relation) {
    for (std::size_t i = 0; i < table_count; ++i) {
        if (!may_be(relation, oids[i])) continue;
        oids[i] = InvalidOid;
        if (forgetters[i] != nullptr) forgetters[i]();
    }
}

// No message is processed between the look at the catalog and the caller's note of what it found.
Oid find_table(const char* name) {
    const Oid schema = get_namespace_oid(schema_name, true);
    return OidIsValid(schema) ? get_relname_relid(name, schema) : InvalidOid;
}

// The default operator class of uuid for btree; the server has no name for it.
constexpr Oid uuid_family = 2968;
constexpr AttrNumber digest_column = 1;

// Takes the row's entry without waiting and without raising, whatever the index holds already.
// False when that is, or may come to be, another row of the same digest.
bool add_digest_entry(Relation table, Relation index, IndexInfo* info, TupleTableSlot* slot) {
    Assert(is_digest_index(index));
    Datum values[INDEX_MAX_KEYS];
    bool nulls[INDEX_MAX_KEYS];
    FormIndexDatum(info, slot, nullptr, values, nulls);
    return index_insert(index, values, nulls, &slot->tts_tid, table, UNIQUE_CHECK_PARTIAL, false,
                        info);
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
        report::not_installed(
            psprintf("%s.%s", schema_name, table_names[static_cast<std::size_t>(table)]));
    return oid;
}

Relation open_table(Table table, LOCKMODE mode) {
    return table_open(table_oid(table), mode);
}

bool is_digest_index(Relation index) {
    const FormData_pg_index* form = index->rd_index;
    return form->indisunique && form->indimmediate && form->indisready && form->indislive &&
           form->indnkeyatts == 1 && form->indkey.values[0] == digest_column &&
           index->rd_opfamily[0] == uuid_family &&
           heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, nullptr);
}

DigestEntries add_digest_entries(Relation table, TupleTableSlot* slot) {
    DigestEntries made;
    List* indexes = RelationGetIndexList(table);
    for (int i = 0; i < list_length(indexes); ++i) {
        Relation index = index_open(list_nth_oid(indexes, i), RowExclusiveLock);
        if (!is_digest_index(index))
            made.more_indexes = true;
        else if (!add_digest_entry(table, index, BuildIndexInfo(index), slot))
            made.alone = false;
        index_close(index, NoLock);
    }
    list_free(indexes);
    return made;
}

void add_other_entries(Relation table, TupleTableSlot* slot, IndexEntries which) {
    OpenIndexes indexes(table);
    indexes.add_other_entries(slot, which);
    indexes.close();
}

OpenIndexes::OpenIndexes(Relation table)
    : estate_(CreateExecutorState()), target_(makeNode(ResultRelInfo)) {
    InitResultRelInfo(target_, table, 0, nullptr, 0);
    ExecOpenIndices(target_, false);
    for (int i = 0; i < target_->ri_NumIndices; ++i) {
        if (!is_digest_index(target_->ri_IndexRelationDescs[i])) continue;
        digest_indexes_ = lappend_int(digest_indexes_, i);
        target_->ri_IndexRelationInfo[i]->ii_ReadyForInserts = false;  // not the executor's
    }
}

void OpenIndexes::close() {
    ExecCloseIndices(target_);
    list_free(digest_indexes_);
    FreeExecutorState(estate_);
}

bool OpenIndexes::claim_digest(TupleTableSlot* slot) {
    for (int i = 0; i < list_length(digest_indexes_); ++i) {
        const int at = list_nth_int(digest_indexes_, i);
        if (!add_digest_entry(target_->ri_RelationDesc, target_->ri_IndexRelationDescs[at],
                              target_->ri_IndexRelationInfo[at], slot))
            return false;
    }
    return true;
}

void OpenIndexes::add_other_entries(TupleTableSlot* slot, IndexEntries which) {
    Assert(which != IndexEntries::none && ItemPointerIsValid(&slot->tts_tid));
    List* unchecked =
        compat::insert_index_entries(target_, slot, estate_, which == IndexEntries::summarizing);
    for (int i = 0; unchecked != NIL && i < target_->ri_NumIndices; ++i)
        if (list_member_oid(unchecked, RelationGetRelid(target_->ri_IndexRelationDescs[i])))
            check_now(target_->ri_IndexRelationDescs[i], target_->ri_IndexRelationInfo[i], slot);
    ResetPerTupleExprContext(estate_);
}

// What the trigger of a deferrable constraint does, without its transaction's end: nothing of ours
// comes back then.
void OpenIndexes::check_now(Relation index, IndexInfo* info, TupleTableSlot* slot) {
    Datum values[INDEX_MAX_KEYS];
    bool nulls[INDEX_MAX_KEYS];
    Relation table = target_->ri_RelationDesc;
    GetPerTupleExprContext(estate_)->ecxt_scantuple = slot;
    FormIndexDatum(info, slot, estate_, values, nulls);
    if (info->ii_ExclusionOps != nullptr)
        check_exclusion_constraint(table, index, info, &slot->tts_tid, values, nulls, estate_,
                                   false);
    else
        (void)index_insert(index, values, nulls, &slot->tts_tid, table, UNIQUE_CHECK_EXISTING,
                           false, info);
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
