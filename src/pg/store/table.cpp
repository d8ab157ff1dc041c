#include "pg/store/table.hpp"

#include "pg/store/leaf_probe.hpp"

namespace idem::pg {
namespace {

constexpr const char* schema_name = "idem";
constexpr auto table_names = std::to_array<const char*>(
    {"record", "watermark", "scope", "dropped_scope", "secret", "purge_progress", "scope_id"});
constexpr std::size_t table_count = table_names.size();
static_assert(table_count == static_cast<std::size_t>(Table::scope_id) + 1);

constinit std::array<Oid, table_count> oids{};
constinit std::array<void (*)(), table_count> forgetters{};
constinit std::array<std::uint64_t, 256> changes{};  // of the relations with this remainder
constinit std::uint64_t all_changes = 1;

struct KnownIndexes {
    Oid table;
    std::uint64_t as_of;  // changes of the table
    Oid unfinished;       // of unfinished operations; InvalidOid if there is none
    AttrNumber state;     // the column in its condition
    bool others;          // there are more beside this one and the primary key
};
constinit std::array<KnownIndexes, known_tables> known_indexes{};

// An invalidation of the relation; InvalidOid stands for all relations. While the OID of one of
// idem's tables is unknown, every message may concern it: a message that arrives while the table is
// opened makes its OID unknown, and the next one must still reach the cache that was filled from
// it.
void forget_table(Datum, Oid relation) {
    ++all_changes;
    if (OidIsValid(relation))
        ++changes[relation % changes.size()];
    else
        for (std::uint64_t& count : changes) ++count;
    for (std::size_t i = 0; i < table_count; ++i) {
        if (OidIsValid(relation) && OidIsValid(oids[i]) && relation != oids[i]) continue;
        oids[i] = InvalidOid;
        if (forgetters[i] != nullptr) forgetters[i]();
    }
}

// The last relations that the transaction has locked RowExclusive until it ends: to lock one again
// costs nearly as much as the first time. A subtransaction that commits hands its locks to its
// parent; one that rolls back makes us forget all, whichever it had locked.
constinit std::array<Oid, 5> held_locks{};  // records, watermarks, and their own indexes
constinit std::size_t held_locks_added = 0;

// Opens a table or an index, locked RowExclusive until the transaction ends. Only a new lock
// accepts invalidations. What another session may change beside a lock that is held, such as the
// state of an index that it builds, waits for our transaction before anything depends on it.
Relation open_to_write(Relation (*open)(Oid, LOCKMODE), Oid oid) {
    const bool held = std::find(held_locks.begin(), held_locks.end(), oid) != held_locks.end();
    if (!held) lock_for_transaction(oid, RowExclusiveLock);
    Relation relation = open(oid, NoLock);
    Assert(CheckRelationLockedByMe(relation, RowExclusiveLock, true));
    if (!held) held_locks[held_locks_added++ % held_locks.size()] = oid;
    return relation;
}

// The operator family of uuid for btree, and the operator = of "char"; the server's headers have no
// names for their OIDs.
constexpr Oid uuid_family = 2968;
constexpr Oid char_equal = 92;
constexpr AttrNumber digest_column = 1;

// The digest alone or, where the first column is the tenant, the digest and the tenant.
bool has_digest_columns(const FormData_pg_index* index, Relation table) {
    const auto* columns = index->indkey.values;
    if (!has_tenant_column(RelationGetDescr(table)))
        return index->indnkeyatts == 1 && columns[0] == digest_column;
    return index->indnkeyatts == 2 && columns[0] == digest_column + 1 && columns[1] == 1;
}

// Adds the row's entry to an index without expressions, whose condition, if it has one, holds for
// the row. Under UNIQUE_CHECK_PARTIAL, returns false when the index holds, or may come to hold,
// another row with the same values; this never waits and raises no error. An index may have been
// set dead since the caller opened the table, by REINDEX CONCURRENTLY; it then takes entries until
// the caller's transaction ends.
bool add_entry(Relation table, Relation index, TupleTableSlot* slot, IndexUniqueCheck check) {
    Assert(ItemPointerIsValid(&slot->tts_tid));
    Assert(index->rd_rel->relam == BTREE_AM_OID);  // which does not ask for the IndexInfo
    const FormData_pg_index* form = index->rd_index;
    Datum values[INDEX_MAX_KEYS];
    bool nulls[INDEX_MAX_KEYS];
    for (int i = 0; i < form->indnatts; ++i)
        values[i] = slot_getattr(slot, form->indkey.values[i], &nulls[i]);
    return index_insert(index, values, nulls, &slot->tts_tid, table, check, false, nullptr);
}

constexpr char unfinished_state = static_cast<char>(core::State::in_progress);

bool has_condition(Relation index, AttrNumber column, char value) {
    bool null;
    const Datum stored =
        SysCacheGetAttr(INDEXRELID, index->rd_indextuple, Anum_pg_index_indpred, &null);
    if (null) return false;
    Expr* wanted =
        make_opclause(char_equal, BOOLOID, false,
                      reinterpret_cast<Expr*>(makeVar(1, column, CHAROID, -1, InvalidOid, 0)),
                      reinterpret_cast<Expr*>(
                          makeConst(CHAROID, -1, InvalidOid, 1, CharGetDatum(value), false, true)),
                      InvalidOid, InvalidOid);
    return equal(stringToNode(TextDatumGetCString(stored)), wanted);
}

// Such an index needs no executor either: a btree of columns that is not unique.
bool is_unfinished_index(Relation index, AttrNumber scope, AttrNumber state) {
    const FormData_pg_index* form = index->rd_index;
    return scope > 0 && state > 0 && form->indisvalid && form->indisready && form->indislive &&
           form->indkey.values[0] == scope && !form->indisunique && !form->indisexclusion &&
           index->rd_rel->relam == BTREE_AM_OID &&
           heap_attisnull(index->rd_indextuple, Anum_pg_index_indexprs, nullptr) &&
           has_condition(index, state, unfinished_state);
}

KnownIndexes read_indexes(Relation table) {
    const Oid oid = RelationGetRelid(table);
    KnownIndexes found{oid, changes_of(oid), InvalidOid, get_attnum(oid, "state"), false};
    const AttrNumber scope = get_attnum(oid, "scope");
    const Oid primary_key = compat::primary_key_of(table);
    List* indexes = RelationGetIndexList(table);
    for (int i = 0; i < list_length(indexes); ++i) {
        Relation index = index_open(list_nth_oid(indexes, i), AccessShareLock);
        if (!OidIsValid(found.unfinished) && is_unfinished_index(index, scope, found.state))
            found.unfinished = RelationGetRelid(index);
        else if (RelationGetRelid(index) != primary_key || !is_digest_index(index, table))
            found.others = true;
        index_close(index, AccessShareLock);
    }
    list_free(indexes);
    return found;
}

KnownIndexes indexes_of(Relation table) {
    const Oid oid = RelationGetRelid(table);
    KnownIndexes& known = known_indexes[oid % known_indexes.size()];
    if (known.table != oid || known.as_of != changes_of(oid)) known = read_indexes(table);
    return known;
}

Oid collation_of(Relation table, AttrNumber column) {
    return TupleDescAttr(RelationGetDescr(table), column - 1)->attcollation;
}

// A unique btree of this column alone finds its values, whatever created it.
Oid find_unique_index(Relation table, AttrNumber column) {
    Oid found = InvalidOid;
    List* indexes = RelationGetIndexList(table);
    for (int i = 0; i < list_length(indexes) && !OidIsValid(found); ++i) {
        Relation index = index_open(list_nth_oid(indexes, i), AccessShareLock);
        const FormData_pg_index* form = index->rd_index;
        if (form->indisvalid && form->indisunique && form->indnkeyatts == 1 &&
            form->indkey.values[0] == column && index->rd_rel->relam == BTREE_AM_OID &&
            index->rd_indcollation[0] == collation_of(table, column) &&
            heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, nullptr))
            found = RelationGetRelid(index);
        index_close(index, AccessShareLock);
    }
    list_free(indexes);
    return found;
}

[[noreturn]] void refuse_without_digest_index(Relation table) {
    const char* name = qualified_name(RelationGetRelid(table));
    const char* columns = digest_columns(RelationGetDescr(table));
    ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                    errmsg("table %s has no usable primary key", name),
                    errdetail("The primary key must be (%s), and must not be deferrable. Otherwise "
                              "an operation could be executed twice.",
                              columns),
                    errhint("As a superuser, drop the table's primary key, if it has one, and run "
                            "ALTER TABLE %s ADD PRIMARY KEY (%s).",
                            name, columns)));
}

[[noreturn]] void refuse_unlogged(Relation table) {
    ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                    errmsg("table \"%s\" is unlogged", RelationGetRelationName(table)),
                    errdetail("A crash would empty it, and operations would be executed twice."),
                    errhint("Execute ALTER TABLE %s SET LOGGED.",
                            qualified_name(RelationGetRelid(table)))));
}

[[noreturn]] void refuse_null(const FormData_pg_attribute* column) {
    const Oid table = column->attrelid;
    const char* name = NameStr(column->attname);
    ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                    errmsg("column \"%s\" of table \"%s\" is NOT NULL", name, get_rel_name(table)),
                    errdetail("idem has no value for it."),
                    errhint("Execute ALTER TABLE %s ALTER COLUMN %s DROP NOT NULL.",
                            qualified_name(table), quote_identifier(name))));
}

}  // namespace

void init_tables() {
    CacheRegisterRelcacheCallback(forget_table, 0);
}

void forget_held_locks() {
    held_locks.fill(InvalidOid);
}

Oid own_schema() {
    return get_namespace_oid(schema_name, true);
}

void on_invalidation(Table table, void (*forget)()) {
    forgetters[static_cast<std::size_t>(table)] = forget;
}

std::uint64_t changes_of(Oid relation) {
    return OidIsValid(relation) ? changes[relation % changes.size()] : all_changes;
}

const char* qualified_name(Oid relation) {
    const char* name = get_rel_name(relation);
    if (name == nullptr) return psprintf("%u", relation);  // it was dropped meanwhile
    return quote_qualified_identifier(get_namespace_name(get_rel_namespace(relation)), name);
}

Oid find_table_oid(Table table) {
    const auto index = static_cast<std::size_t>(table);
    const Oid schema = OidIsValid(oids[index]) ? InvalidOid : own_schema();
    // No invalidation is processed between this look at the catalog and the note of the OID.
    if (OidIsValid(schema)) oids[index] = get_relname_relid(table_names[index], schema);
    const Oid oid = oids[index];
    // Where idem's own was renamed, another role may have made a schema or table of the same name.
    if (OidIsValid(schema) && OidIsValid(oid) &&
        getExtensionOfObject(RelationRelationId, oid) != get_extension_oid("idem", true))
        return oids[index] = InvalidOid;
    return oid;
}

Oid table_oid(Table table) {
    const Oid oid = find_table_oid(table);
    if (OidIsValid(oid)) return oid;
    const char* name = table_names[static_cast<std::size_t>(table)];
    const bool is_installed = OidIsValid(get_extension_oid("idem", true));
    ereport(ERROR,
            (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
             is_installed ? errmsg("extension \"idem\" lacks its table \"%s\"", name)
                          : errmsg("extension \"idem\" is not installed in this database"),
             errdetail("Table \"%s.%s\" does not exist, or is not part of the extension.",
                       schema_name, name),
             is_installed ? errhint("It was renamed, moved or dropped from the extension: undo "
                                    "that. Do not drop the extension, which would delete every "
                                    "key.")
                          : errhint("Run CREATE EXTENSION idem.")));
}

Relation open_table(Table table, LOCKMODE mode) {
    return table_open(table_oid(table), mode);
}

bool is_digest_index(Relation index, Relation table) {
    const FormData_pg_index* form = index->rd_index;
    return form->indisunique && form->indimmediate && form->indisready && form->indislive &&
           has_digest_columns(form, table) && index->rd_opfamily[0] == uuid_family &&
           heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, nullptr);
}

SysScanDesc begin_search(Relation table, AttrNumber column, RegProcedure equal, Datum value,
                         Snapshot snapshot) {
    const Oid index = find_unique_index(table, column);
    ScanKeyData key;
    ScanKeyEntryInitialize(&key, 0, column, BTEqualStrategyNumber, InvalidOid,
                           collation_of(table, column), equal, value);
    return systable_beginscan(table, index, OidIsValid(index), snapshot, 1, &key);
}

Oid find_unfinished_index(Relation table) {
    return indexes_of(table).unfinished;
}

bool is_unfinished(Relation table, TupleTableSlot* slot) {
    const KnownIndexes known = indexes_of(table);
    if (known.state == InvalidAttrNumber) return false;
    bool null;
    const Datum state = slot_getattr(slot, known.state, &null);
    return !null && DatumGetChar(state) == unfinished_state;
}

// Rows are written to the partition itself, so no routing has checked its bounds.
void check_partition(Relation table, TupleTableSlot* slot) {
    if (!table->rd_rel->relispartition) return;
    EState* estate = CreateExecutorState();
    auto* target = makeNode(ResultRelInfo);
    InitResultRelInfo(target, table, 0, nullptr, 0);
    (void)ExecPartitionCheck(target, slot, estate, true);
    FreeExecutorState(estate);
}

OpenIndexes::OpenIndexes(Relation table) : table_(table) {
    const KnownIndexes known = indexes_of(table);
    unfinished_ = known.unfinished;
    if (!known.others) {
        const Oid primary_key = compat::primary_key_of(table);
        if (OidIsValid(primary_key))
            digest_indexes_ = list_make1(open_to_write(index_open, primary_key));
        return;
    }
    estate_ = CreateExecutorState();
    target_ = makeNode(ResultRelInfo);
    InitResultRelInfo(target_, table, 0, nullptr, 0);
    ExecOpenIndices(target_, false);
    for (int i = 0; i < target_->ri_NumIndices; ++i) {
        Relation index = target_->ri_IndexRelationDescs[i];
        if (!is_digest_index(index, table)) continue;
        digest_indexes_ = lappend(digest_indexes_, index);
        target_->ri_IndexRelationInfo[i]->ii_ReadyForInserts = false;  // hidden from the executor
    }
}

void OpenIndexes::close() {
    if (estate_ != nullptr) {
        ExecCloseIndices(target_);
        FreeExecutorState(estate_);
    } else if (digest_indexes_ != NIL) {
        index_close(static_cast<Relation>(linitial(digest_indexes_)), NoLock);
    }
    list_free(digest_indexes_);
}

Relation OpenIndexes::add_digest_entries(TupleTableSlot* slot, Relation after) {
    bool is_next = after == nullptr;
    for (int i = 0; i < list_length(digest_indexes_); ++i) {
        auto* index = static_cast<Relation>(list_nth(digest_indexes_, i));
        if (is_next && !add_entry(table_, index, slot, UNIQUE_CHECK_PARTIAL)) return index;
        is_next = is_next || index == after;
    }
    return nullptr;
}

void OpenIndexes::add_other_entries(TupleTableSlot* slot, IndexEntries which, bool unfinished) {
    Assert(which != IndexEntries::none && ItemPointerIsValid(&slot->tts_tid));
    if (estate_ == nullptr) {
        if (which != IndexEntries::all || !unfinished || !OidIsValid(unfinished_)) return;
        Relation index = open_to_write(index_open, unfinished_);
        (void)add_entry(table_, index, slot, UNIQUE_CHECK_NO);
        index_close(index, NoLock);
        return;
    }
    List* unchecked =
        compat::insert_index_entries(target_, slot, estate_, which == IndexEntries::summarizing);
    for (int i = 0; unchecked != NIL && i < target_->ri_NumIndices; ++i)
        if (list_member_oid(unchecked, RelationGetRelid(target_->ri_IndexRelationDescs[i])))
            check_now(target_->ri_IndexRelationDescs[i], target_->ri_IndexRelationInfo[i], slot);
    ResetPerTupleExprContext(estate_);
}

// Does now what the trigger of a deferrable constraint does when the transaction ends: no trigger
// fires for rows that are written without the executor.
void OpenIndexes::check_now(Relation index, IndexInfo* info, TupleTableSlot* slot) {
    Datum values[INDEX_MAX_KEYS];
    bool nulls[INDEX_MAX_KEYS];
    GetPerTupleExprContext(estate_)->ecxt_scantuple = slot;
    FormIndexDatum(info, slot, estate_, values, nulls);
    if (info->ii_ExclusionOps != nullptr)
        check_exclusion_constraint(table_, index, info, &slot->tts_tid, values, nulls, estate_,
                                   false);
    else
        (void)index_insert(index, values, nulls, &slot->tts_tid, table_, UNIQUE_CHECK_EXISTING,
                           false, info);
}

bool written_here(TupleTableSlot* slot) {
    Assert(!TTS_EMPTY(slot));
    bool null;
    const Datum xmin = slot_getsysattr(slot, MinTransactionIdAttributeNumber, &null);
    Assert(!null);
    return TransactionIdIsCurrentTransactionId(DatumGetTransactionId(xmin));
}

bool has_successor(TupleTableSlot* slot) {
    const HeapTuple row = ExecFetchSlotHeapTuple(slot, false, nullptr);
    return !ItemPointerEquals(&row->t_data->t_ctid, &slot->tts_tid);
}

void fill_row(TupleTableSlot* slot, std::span<const Datum> values, std::span<const bool> nulls) {
    Assert(values.size() == nulls.size());
    ExecClearTuple(slot);
    const auto columns = static_cast<std::size_t>(slot->tts_tupleDescriptor->natts);
    if (columns < values.size())
        elog(ERROR, "table \"%s\" has %zu columns instead of %zu", get_rel_name(slot->tts_tableOid),
             columns, values.size());
    std::fill_n(slot->tts_isnull, columns, true);
    std::copy(values.begin(), values.end(), slot->tts_values);
    std::copy(nulls.begin(), nulls.end(), slot->tts_isnull);
    (void)ExecStoreVirtualTuple(slot);
}

void check_not_null(TupleTableSlot* slot) {
    const TupleDesc table = slot->tts_tupleDescriptor;
    for (int i = 0; i < table->natts; ++i)
        if (slot->tts_isnull[i] && TupleDescAttr(table, i)->attnotnull)
            refuse_null(TupleDescAttr(table, i));
}

TupleTableSlot* new_row(Relation relation, std::span<const Datum> values,
                        std::span<const bool> nulls) {
    TupleTableSlot* slot = table_slot_create(relation, nullptr);
    fill_row(slot, values, nulls);
    return slot;
}

const char* digest_columns(TupleDesc table) {
    if (!has_tenant_column(table)) return "digest";
    return psprintf("digest, %s", quote_identifier(NameStr(TupleDescAttr(table, 0)->attname)));
}

KeyedTable::KeyedTable(Oid table, Access access, Relation (*open)(Oid, LOCKMODE))
    : table_(access == Access::write ? open_to_write(open, table) : open(table, AccessShareLock)),
      release_(access == Access::write ? NoLock : AccessShareLock) {
    if (access == Access::write && !RelationIsPermanent(table_)) refuse_unlogged(table_);
}

Relation KeyedTable::open_index() const {
    const Oid primary_key = compat::primary_key_of(table_);
    if (!OidIsValid(primary_key)) refuse_without_digest_index(table_);
    Relation index = release_ == NoLock ? open_to_write(index_open, primary_key)
                                        : index_open(primary_key, release_);
    if (!is_digest_index(index, table_)) refuse_without_digest_index(table_);
    return index;
}

DigestScan::DigestScan(const KeyedTable& table, Relation index)
    : table_(table),
      index_(index == nullptr ? table.open_index() : index_open(RelationGetRelid(index), NoLock)) {
    InitDirtySnapshot(dirty_);
}

void DigestScan::end() {
    if (scan_ != nullptr) index_endscan(scan_);
    if (slot_ != nullptr) ExecDropSingleTupleTableSlot(slot_);
    table_.close_index(index_);
}

void DigestScan::seek(const core::Digest& digest) {
    if (scan_ == nullptr) scan_ = compat::begin_index_scan(table_.table(), index_, &dirty_, 1);
    digest_ = std::bit_cast<pg_uuid_t>(digest);
    ScanKeyData key;
    ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_UUID_EQ, UUIDPGetDatum(&digest_));
    index_rescan(scan_, &key, 1, nullptr, 0);
    entries_ = 0;
}

void DigestScan::release_pins() {
    if (slot_ != nullptr) ExecClearTuple(slot_);
    if (scan_ != nullptr) index_rescan(scan_, nullptr, 1, nullptr, 0);  // the digest remains
}

// Does as index_getnext_slot() does, but makes the slot only for an entry that it has found: most
// probes find none.
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

// Whether the digest has a hit, if its leaf page says so: it does unless the row versions behind
// the first entry are dead, or one is being inserted.
std::optional<bool> DigestScan::find_in_leaf() {
    const LeafEntry entry = probe_leaf(table_.table(), index_, digest_);
    if (entry.answer == LeafEntry::Answer::none) return false;
    if (entry.answer == LeafEntry::Answer::unclear) return std::nullopt;
    if (slot_ == nullptr) slot_ = table_slot_create(table_.table(), nullptr);
    const bool hit = compat::fetch_by_entry(table_.table(), entry.row, &dirty_, slot_) &&
                     presence() != core::Presence::inserting;
    ReleaseBuffer(entry.leaf);  // a hit's own page is pinned
    return hit ? std::optional(true) : std::nullopt;
}

// Without the key lock the row may move during the scan: its new version gets an index entry after
// the index page was read, and the old version is dead when the scan comes to it. A second scan
// then meets other entries than the first. When it meets the same, the first has missed nothing.
bool DigestScan::find(const core::Digest& digest) {
    CHECK_FOR_INTERRUPTS();
    release_pins();
    digest_ = std::bit_cast<pg_uuid_t>(digest);
    if (const auto found = find_in_leaf()) return *found;
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
    Assert(slot_ != nullptr && !TTS_EMPTY(slot_));
    if (TransactionIdIsValid(dirty_.xmin)) return core::Presence::inserting;
    if (written_here(slot_)) return core::Presence::own;
    if (TransactionIdIsValid(dirty_.xmax)) return core::Presence::deleting;
    return core::Presence::committed;
}

bool DigestScan::in_snapshot() const {
    return !IsolationUsesXactSnapshot() ||
           table_tuple_satisfies_snapshot(table_.table(), slot_, GetTransactionSnapshot());
}

RowWriter DigestScan::writer() const {
    const bool inserting = TransactionIdIsValid(dirty_.xmin);
    return {inserting ? dirty_.xmin : dirty_.xmax, inserting ? dirty_.speculativeToken : 0};
}

// No other backend, VACUUM above all, may have to wait for a pin while we wait.
bool DigestScan::wait(WaitBound& bound) {
    const RowWriter other = writer();
    release_pins();
    return bound.wait_for(other);
}

}  // namespace idem::pg
