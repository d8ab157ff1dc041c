#include "pg/table.hpp"

#include "pg/compat.hpp"
#include "pg/report.hpp"

namespace idem::pg {
namespace {

constexpr const char* schema_name = "idem";
constexpr std::array<const char*, table_count> table_names = {
    "record", "watermark", "scope", "dropped_scope", "secret", "sweep", "scope_id"};

constinit std::array<Oid, table_count> oids{};
constinit std::array<void (*)(), table_count> forgetters{};
using ForgetEach = void (*)(Oid relation);
constinit ForgetEach forgetter_of_each = nullptr;

// Whether an invalidation of the relation (InvalidOid stands for all relations) may concern the
// table. While the table's OID is unknown, every message may: a message that arrives while the
// table is opened makes its OID unknown, and the next one must still reach the cache that was
// filled from it.
bool may_be(Oid relation, Oid table) {
    return !OidIsValid(relation) || !OidIsValid(table) || relation == table;
}

// Partial indexes that are known, so that a row that needs no entry there does not open them. The
// condition of an index never changes; the index is forgotten when it may have been dropped, which
// invalidates its table.
struct PartialIndex {
    Oid table;
    Oid index;
    CharCondition condition;
};
constinit std::array<PartialIndex, std::tuple_size_v<UnneededIndexes>>
    partial_indexes{};  // unused: no OIDs
constinit std::size_t next_partial_index = 0;

void forget_partial_indexes(Oid table) {
    for (PartialIndex& known : partial_indexes)
        if (!OidIsValid(table) || known.table == table) known = {};
}

void note_partial_index(const PartialIndex& index) {
    partial_indexes[next_partial_index] = index;
    next_partial_index = (next_partial_index + 1) % partial_indexes.size();
}

std::optional<CharCondition> known_condition(Oid index) {
    for (const PartialIndex& known : partial_indexes)
        if (known.index == index) return known.condition;
    return std::nullopt;
}

void forget_table(Datum, Oid relation) {
    forget_partial_indexes(relation);
    if (forgetter_of_each != nullptr) forgetter_of_each(relation);
    for (std::size_t i = 0; i < table_count; ++i) {
        if (!may_be(relation, oids[i])) continue;
        oids[i] = InvalidOid;
        if (forgetters[i] != nullptr) forgetters[i]();
    }
}

}  // namespace

Oid own_schema() {
    return get_namespace_oid(schema_name, true);
}

namespace {

// No invalidation is processed between this look at the catalog and the caller's note of the OID.
Oid find_table(const char* name) {
    const Oid schema = own_schema();
    return OidIsValid(schema) ? get_relname_relid(name, schema) : InvalidOid;
}

// The last relations that the transaction has locked RowExclusive until it ends: to lock one again
// costs nearly as much as the first time. A subtransaction that commits hands its locks to its
// parent; one that rolls back makes us forget all, whichever it had locked.
class HeldLocks {
  public:
    bool has(Oid relation) const {
        return std::find(relations_.begin(), relations_.end(), relation) != relations_.end();
    }
    void add(Oid relation) { relations_[added_++ % relations_.size()] = relation; }
    void forget() { relations_.fill(InvalidOid); }

  private:
    std::array<Oid, 5> relations_{};  // records, watermarks, and their own indexes
    std::size_t added_ = 0;
};
constinit HeldLocks held_locks;

extern "C" {
static void forget_locks_at_end(XactEvent, void*) {
    held_locks.forget();
}

static void forget_locks_at_rollback(SubXactEvent event, SubTransactionId, SubTransactionId,
                                     void*) {
    if (event == SUBXACT_EVENT_ABORT_SUB) held_locks.forget();
}
}

// Opens a table or an index, locked RowExclusive until the transaction ends; NULL if open() finds
// none. Only a new lock
// accepts invalidations. What another session may change beside a lock that is held, such as the
// state of an index that it builds, waits for our transaction before anything depends on it.
Relation open_to_write(Relation (*open)(Oid, LOCKMODE), Oid oid) {
    const bool held = held_locks.has(oid);
    Relation relation = open(oid, held ? NoLock : RowExclusiveLock);
    if (relation == nullptr) return nullptr;
    Assert(CheckRelationLockedByMe(relation, RowExclusiveLock, true));
    if (!held) held_locks.add(oid);
    return relation;
}

// The operator family of uuid for btree; the server's headers have no name for its OID.
constexpr Oid uuid_family = 2968;
constexpr AttrNumber digest_column = 1;

// The digest alone or, where the first column is the tenant, the digest and the tenant.
bool has_digest_columns(const FormData_pg_index* index, Relation table) {
    const auto* columns = index->indkey.values;
    if (!has_tenant_column(RelationGetDescr(table)))
        return index->indnkeyatts == 1 && columns[0] == digest_column;
    return index->indnkeyatts == 2 && columns[0] == digest_column + 1 && columns[1] == 1;
}

// What nbtree may want to know of a digest index: nothing beyond this, because the index has
// neither expressions nor a predicate. BuildIndexInfo() reads the catalog's form of both for each
// row.
IndexInfo digest_index_info(Relation index) {
    IndexInfo info{};
    info.type = T_IndexInfo;
    info.ii_NumIndexAttrs = index->rd_index->indnatts;
    info.ii_NumIndexKeyAttrs = index->rd_index->indnkeyatts;
    std::copy_n(index->rd_index->indkey.values, info.ii_NumIndexAttrs, info.ii_IndexAttrNumbers);
    info.ii_Unique = true;
    info.ii_ReadyForInserts = true;
    info.ii_Am = index->rd_rel->relam;
    info.ii_Context = CurrentMemoryContext;
    return info;
}

// Adds the row's entry without waiting and without raising an error, whatever the index holds.
// Returns false when the index holds, or may come to hold, another row of the same digest. An index
// that was a digest index when the caller opened it may have been set dead meanwhile, by REINDEX
// CONCURRENTLY; it then takes entries until the caller's transaction ends.
bool add_digest_entry(Relation table, Relation index, TupleTableSlot* slot) {
    Assert(index->rd_index->indisunique && has_digest_columns(index->rd_index, table));
    Assert(ItemPointerIsValid(&slot->tts_tid));
    Datum values[INDEX_MAX_KEYS];
    bool nulls[INDEX_MAX_KEYS];
    IndexInfo info = digest_index_info(index);
    FormIndexDatum(&info, slot, nullptr, values, nulls);
    return index_insert(index, values, nulls, &slot->tts_tid, table, UNIQUE_CHECK_PARTIAL, false,
                        &info);
}

// Whether the condition holds for the row.
bool satisfies(TupleTableSlot* slot, const CharCondition& condition) {
    bool null;
    const Datum value = slot_getattr(slot, condition.column, &null);
    return !null && DatumGetChar(value) == condition.value;
}

// Adds the row's entry to a partial index; its condition holds for the row. Such an index has no
// expressions, so the short form of the information is whole; the other one copies the condition.
void add_partial_entry(Relation table, Relation index, TupleTableSlot* slot) {
    if (!index->rd_index->indisready) return;  // its builder completes it
    IndexInfo* info = BuildDummyIndexInfo(index);
    Datum values[INDEX_MAX_KEYS];
    bool nulls[INDEX_MAX_KEYS];
    FormIndexDatum(info, slot, nullptr, values, nulls);
    (void)index_insert(index, values, nulls, &slot->tts_tid, table, UNIQUE_CHECK_NO, false, info);
}

// The condition if the expression is column = constant, as the parser leaves it.
std::optional<CharCondition> condition_of(const Node* expression) {
    if (!IsA(expression, OpExpr)) return std::nullopt;
    const auto* comparison = reinterpret_cast<const OpExpr*>(expression);
    if (comparison->opfuncid != F_CHAREQ) return std::nullopt;
    const auto* column = static_cast<const Node*>(linitial(comparison->args));
    const auto* constant = static_cast<const Node*>(lsecond(comparison->args));
    if (!IsA(column, Var) || !IsA(constant, Const)) return std::nullopt;
    const auto* value = reinterpret_cast<const Const*>(constant);
    if (value->constisnull) return std::nullopt;
    return CharCondition{reinterpret_cast<const Var*>(column)->varattno,
                         DatumGetChar(value->constvalue)};
}

}  // namespace

void init_tables() {
    CacheRegisterRelcacheCallback(forget_table, 0);
    RegisterXactCallback(forget_locks_at_end, nullptr);
    RegisterSubXactCallback(forget_locks_at_rollback, nullptr);
}

void on_invalidation(Table table, void (*forget)()) {
    forgetters[static_cast<std::size_t>(table)] = forget;
}

void on_each_invalidation(void (*forget)(Oid relation)) {
    Assert(forgetter_of_each == nullptr);
    forgetter_of_each = forget;
}

const char* qualified_name(Oid relation) {
    return quote_qualified_identifier(get_namespace_name(get_rel_namespace(relation)),
                                      get_rel_name(relation));
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

bool is_digest_index(Relation index, Relation table) {
    const FormData_pg_index* form = index->rd_index;
    return form->indisunique && form->indimmediate && form->indisready && form->indislive &&
           has_digest_columns(form, table) && index->rd_opfamily[0] == uuid_family &&
           heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, nullptr);
}

namespace {

// The index's condition. RelationGetIndexPredicate() would simplify it, and so call the functions
// in it that are immutable; what the executor has left in the relation cache is simplified already.
const Node* stored_condition(Relation index) {
    if (list_length(index->rd_indpred) == 1)
        return static_cast<const Node*>(linitial(index->rd_indpred));
    bool null;
    const Datum stored =
        SysCacheGetAttr(INDEXRELID, index->rd_indextuple, Anum_pg_index_indpred, &null);
    Assert(!null);
    auto* condition = static_cast<Node*>(stringToNode(TextDatumGetCString(stored)));
    fix_opfuncids(condition);
    return condition;
}

}  // namespace

std::optional<CharCondition> partial_condition(Relation index) {
    const FormData_pg_index* form = index->rd_index;
    if (heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, nullptr) ||
        !heap_attisnull(index->rd_indextuple, Anum_pg_index_indexprs, nullptr) ||
        form->indisunique || form->indisexclusion || index->rd_rel->relam != BTREE_AM_OID)
        return std::nullopt;
    return condition_of(stored_condition(index));
}

Oid find_partial_index(Relation table, AttrNumber first, const CharCondition& condition) {
    Oid found = InvalidOid;
    List* indexes = RelationGetIndexList(table);
    for (int i = 0; i < list_length(indexes) && !OidIsValid(found); ++i) {
        Relation index = index_open(list_nth_oid(indexes, i), AccessShareLock);
        const auto other = partial_condition(index);
        if (other && other->column == condition.column && other->value == condition.value &&
            index->rd_index->indisvalid && index->rd_index->indkey.values[0] == first)
            found = RelationGetRelid(index);
        index_close(index, AccessShareLock);
    }
    list_free(indexes);
    return found;
}

namespace {

// The same, remembered: partial_condition() copies the predicate to read it.
std::optional<CharCondition> remembered_condition(Relation table, Relation index) {
    const Oid oid = RelationGetRelid(index);
    if (const auto known = known_condition(oid)) return known;
    const auto condition = partial_condition(index);
    if (condition) note_partial_index({RelationGetRelid(table), oid, *condition});
    return condition;
}

// Adds what the index needs of the row, unless only the executor can.
void add_direct_entry(Relation table, Oid oid, TupleTableSlot* slot, DirectEntries& made) {
    Relation index = open_to_write(index_open, oid);
    if (is_digest_index(index, table)) {
        if (!add_digest_entry(table, index, slot)) made.alone = false;
    } else if (const auto condition = remembered_condition(table, index)) {
        if (satisfies(slot, *condition)) add_partial_entry(table, index, slot);
    } else {
        made.more_indexes = true;
    }
    index_close(index, NoLock);
}

bool is_among(const UnneededIndexes& indexes, Oid index) {
    return std::find(indexes.begin(), indexes.end(), index) != indexes.end();
}

}  // namespace

UnneededIndexes unneeded_indexes(Relation table, TupleTableSlot* slot) {
    UnneededIndexes unneeded{};
    for (std::size_t i = 0; i < partial_indexes.size(); ++i) {
        const PartialIndex& known = partial_indexes[i];
        if (known.table == RelationGetRelid(table) && !satisfies(slot, known.condition))
            unneeded[i] = known.index;
    }
    return unneeded;
}

DirectEntries add_direct_entries(Relation table, TupleTableSlot* slot,
                                 const UnneededIndexes& unneeded) {
    DirectEntries made;
    List* indexes = RelationGetIndexList(table);
    for (int i = 0; i < list_length(indexes); ++i) {
        const Oid index = list_nth_oid(indexes, i);
        if (!is_among(unneeded, index)) add_direct_entry(table, index, slot, made);
    }
    list_free(indexes);
    return made;
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

void add_other_entries(Relation table, TupleTableSlot* slot, IndexEntries which) {
    OpenIndexes indexes(table, OpenIndexes::Before::direct);
    indexes.add_other_entries(slot, which, {});
    indexes.close();
}

OpenIndexes::OpenIndexes(Relation table, Before before)
    : estate_(CreateExecutorState()), target_(makeNode(ResultRelInfo)) {
    InitResultRelInfo(target_, table, 0, nullptr, 0);
    ExecOpenIndices(target_, false);
    for (int i = 0; i < target_->ri_NumIndices; ++i) {
        Relation index = target_->ri_IndexRelationDescs[i];
        const bool on_digest = is_digest_index(index, table);
        const bool is_partial = !on_digest && remembered_condition(table, index);
        if (on_digest) digest_indexes_ = lappend_int(digest_indexes_, i);
        if (is_partial && before == Before::digest)
            partial_indexes_ = lappend_int(partial_indexes_, i);
        if (on_digest || is_partial)
            target_->ri_IndexRelationInfo[i]->ii_ReadyForInserts = false;  // hidden: filled by us
    }
}

void OpenIndexes::close() {
    ExecCloseIndices(target_);
    list_free(digest_indexes_);
    list_free(partial_indexes_);
    FreeExecutorState(estate_);
}

bool OpenIndexes::claim_digest(TupleTableSlot* slot) {
    Assert(digest_indexes_ != NIL);  // DigestScan has checked the primary key
    for (int i = 0; i < list_length(digest_indexes_); ++i) {
        const int at = list_nth_int(digest_indexes_, i);
        if (!add_digest_entry(target_->ri_RelationDesc, target_->ri_IndexRelationDescs[at], slot))
            return false;
    }
    return true;
}

void OpenIndexes::add_partial_entries(TupleTableSlot* slot, const UnneededIndexes& unneeded) {
    for (int i = 0; i < list_length(partial_indexes_); ++i) {
        Relation index = target_->ri_IndexRelationDescs[list_nth_int(partial_indexes_, i)];
        if (is_among(unneeded, RelationGetRelid(index))) continue;
        const auto condition = remembered_condition(target_->ri_RelationDesc, index);
        if (condition && satisfies(slot, *condition))
            add_partial_entry(target_->ri_RelationDesc, index, slot);
    }
}

void OpenIndexes::add_other_entries(TupleTableSlot* slot, IndexEntries which,
                                    const UnneededIndexes& unneeded) {
    Assert(which != IndexEntries::none && ItemPointerIsValid(&slot->tts_tid));
    if (which == IndexEntries::all) add_partial_entries(slot, unneeded);
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

bool written_here(TupleTableSlot* slot) {
    Assert(!TTS_EMPTY(slot));
    bool null;
    const Datum xmin = slot_getsysattr(slot, MinTransactionIdAttributeNumber, &null);
    Assert(!null);
    return TransactionIdIsCurrentTransactionId(DatumGetTransactionId(xmin));
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

TupleTableSlot* new_row(Relation relation, std::span<const Datum> values,
                        std::span<const bool> nulls) {
    TupleTableSlot* slot = table_slot_create(relation, nullptr);
    fill_row(slot, values, nulls);
    return slot;
}

pg_uuid_t uuid_of(const core::Digest& digest) {
    static_assert(sizeof(pg_uuid_t) == sizeof(core::Digest));
    pg_uuid_t uuid;
    memcpy(uuid.data, digest.data(), digest.size());
    return uuid;
}

const char* digest_columns(TupleDesc table) {
    if (!has_tenant_column(table)) return "digest";
    return psprintf("digest, %s", quote_identifier(NameStr(TupleDescAttr(table, 0)->attname)));
}

KeyedTable KeyedTable::to_read(Oid table, Open open) {
    return {open(table, AccessShareLock), AccessShareLock};
}

KeyedTable KeyedTable::to_write(Oid table, Open open) {
    return {open_to_write(open, table), NoLock};
}

namespace {

[[noreturn]] void refuse_without_digest_index(Relation table) {
    const char* name = qualified_name(RelationGetRelid(table));
    const char* columns = digest_columns(RelationGetDescr(table));
    ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                    errmsg("table \"%s\" has no usable primary key", name),
                    errdetail("The primary key must be (%s), and must not be deferrable. Otherwise "
                              "an operation could be executed twice.",
                              columns),
                    errhint("As a superuser, drop the table's primary key, if it has one, and run "
                            "ALTER TABLE %s ADD PRIMARY KEY (%s).",
                            name, columns)));
}

}  // namespace

Relation KeyedTable::open_index() const {
    const Oid primary_key = compat::primary_key_of(table_);
    if (!OidIsValid(primary_key)) refuse_without_digest_index(table_);
    Relation index = release_ == NoLock ? open_to_write(index_open, primary_key)
                                        : index_open(primary_key, release_);
    if (!is_digest_index(index, table_)) refuse_without_digest_index(table_);
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

// Without the key lock the row may move during the scan: its new version gets an index entry after
// the index page was read, and the old version is dead when the scan comes to it. A second scan
// then meets other entries than the first. When it meets the same, the first has missed nothing.
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

// A row that is deleted, or only locked, points to itself; one that is replaced, to its successor.
bool DigestScan::is_replaced() const {
    Assert(presence() == core::Presence::deleting);
    HeapTuple row = ExecFetchSlotHeapTuple(slot_, false, nullptr);
    return !ItemPointerEquals(&row->t_data->t_ctid, &slot_->tts_tid);
}

// No other backend, VACUUM above all, may have to wait for a pin while we wait.
void DigestScan::release_pins() {
    ExecClearTuple(slot_);
    restart();
}

bool DigestScan::wait(const WaitBound& bound) {
    const RowWriter other = writer();
    release_pins();
    return bound.wait_for(other);
}

void DigestScan::wait() {
    const RowWriter other = writer();
    Assert(other.valid() && !TransactionIdIsCurrentTransactionId(other.xid));
    ItemPointerData tid = slot_->tts_tid;
    release_pins();
    if (other.speculative_token != 0)
        SpeculativeInsertionWait(other.xid, other.speculative_token);
    else
        XactLockTableWait(other.xid, table_.table(), &tid, XLTW_InsertIndex);
}

}  // namespace idem::pg
