#include "pg/table.hpp"

#include "pg/compat.hpp"

namespace idem::pg {
namespace {

constexpr const char* schema_name = "idem";
constexpr std::array<const char*, table_count> table_names = {"record", "scope", "secret", "sweep"};

constinit std::array<Oid, table_count> oids{};

void forget_table(Datum, Oid relation) {
    for (Oid& oid : oids)
        if (relation == InvalidOid || relation == oid) oid = InvalidOid;
}

Oid find_table(const char* name) {
    const Oid schema = get_namespace_oid(schema_name, true);
    const Oid oid = OidIsValid(schema) ? get_relname_relid(name, schema) : InvalidOid;
    if (!OidIsValid(oid))
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("extension \"idem\" is not installed in this database"),
                        errdetail("Table \"%s.%s\" does not exist.", schema_name, name),
                        errhint("Run CREATE EXTENSION idem.")));
    return oid;
}

}  // namespace

void init_tables() {
    CacheRegisterRelcacheCallback(forget_table, 0);
}

Oid known_oid(Table table) {
    return oids[static_cast<std::size_t>(table)];
}

Relation open_table(Table table, LOCKMODE mode) {
    const auto index = static_cast<std::size_t>(table);
    if (!OidIsValid(oids[index])) oids[index] = find_table(table_names[index]);
    return table_open(oids[index], mode);
}

bool add_index_entries(Relation relation, TupleTableSlot* slot, bool tolerate_duplicates) {
    bool conflict = false;
    EState* estate = CreateExecutorState();
    ResultRelInfo* target = makeNode(ResultRelInfo);
    InitResultRelInfo(target, relation, 0, nullptr, 0);
    ExecOpenIndices(target, false);
    compat::insert_index_entries(target, slot, estate, tolerate_duplicates ? &conflict : nullptr);
    ExecCloseIndices(target);
    FreeExecutorState(estate);
    return conflict;
}

bool insert_row(Relation relation, TupleTableSlot* slot, bool tolerate_duplicates) {
    table_tuple_insert(relation, slot, GetCurrentCommandId(true), 0, nullptr);
    return add_index_entries(relation, slot, tolerate_duplicates);
}

TupleTableSlot* new_row(Relation relation, std::span<const Datum> values,
                        std::span<const bool> nulls) {
    TupleTableSlot* slot = table_slot_create(relation, nullptr);
    const auto columns = static_cast<std::size_t>(RelationGetDescr(relation)->natts);
    const std::size_t given = std::min(columns, values.size());
    std::fill_n(slot->tts_isnull, columns, true);
    std::copy_n(values.begin(), given, slot->tts_values);
    std::copy_n(nulls.begin(), given, slot->tts_isnull);
    return ExecStoreVirtualTuple(slot);
}

}  // namespace idem::pg
