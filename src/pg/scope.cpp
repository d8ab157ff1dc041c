#include "pg/scope.hpp"

#include "core/key.hpp"
#include "pg/boundary.hpp"
#include "pg/duration.hpp"
#include "pg/report.hpp"
#include "pg/table.hpp"

namespace idem::pg {
namespace {

enum Column {
    column_id,
    column_name,
    column_owner,
    column_ttl,
    column_wait,
    column_request_required,
    column_tenant_required,
    column_request_exclude,
    columns
};

constinit MemoryContext cache_context = nullptr;
constinit HTAB* cache = nullptr;
constinit bool valid = false;

void forget_scopes() {
    valid = false;
}

// Only here, at the start of a lookup, is an outdated cache freed: an invalidation may arrive while
// a scope is still in use.
void prepare_cache() {
    if (valid) return;
    if (cache_context != nullptr) MemoryContextDelete(cache_context);
    cache = nullptr;
    cache_context = AllocSetContextCreate(CacheMemoryContext, "idem scopes", ALLOCSET_SMALL_SIZES);
    HASHCTL control{};
    control.keysize = NAMEDATALEN;
    control.entrysize = sizeof(Scope);
    control.hcxt = cache_context;
    cache = hash_create("idem scopes", 16, &control, HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
    valid = true;
}

Datum column(TupleTableSlot* slot, Column which) {
    bool null;
    return slot_getattr(slot, which + 1, &null);
}

bool named(TupleTableSlot* slot, std::string_view name) {
    return view_of(DatumGetTextPP(column(slot, column_name))) == name;
}

// Copies the paths into the cache's context, the views and what they point to.
void read_exclude(ArrayType* paths, Scope& scope) {
    Datum* elements;
    int count;
    deconstruct_array(paths, TEXTOID, -1, false, TYPALIGN_INT, &elements, nullptr, &count);
    auto* views = static_cast<std::string_view*>(
        MemoryContextAlloc(cache_context, sizeof(std::string_view) * static_cast<Size>(count + 1)));
    for (int i = 0; i < count; ++i) {
        const std::string_view path = view_of(DatumGetTextPP(elements[i]));
        char* copy = static_cast<char*>(MemoryContextAlloc(cache_context, path.size() + 1));
        std::copy(path.begin(), path.end(), copy);
        views[i] = {copy, path.size()};
    }
    scope.exclude = views;
    scope.exclude_count = static_cast<std::size_t>(count);
}

void read_scope(TupleTableSlot* slot, Scope& scope) {
    scope.id = DatumGetInt32(column(slot, column_id));
    scope.owner = DatumGetObjectId(column(slot, column_owner));
    scope.ttl = duration("ttl", *DatumGetIntervalP(column(slot, column_ttl)));
    scope.wait = duration("wait", *DatumGetIntervalP(column(slot, column_wait)));
    scope.request_required = DatumGetBool(column(slot, column_request_required));
    scope.tenant_required = DatumGetBool(column(slot, column_tenant_required));
    read_exclude(DatumGetArrayTypeP(column(slot, column_request_exclude)), scope);
}

// Scans for the scope under a snapshot of its own (the transaction's may be older than the scope)
// and hands the row to use().
template <class Use>
bool scan_for(std::string_view name, Use use) {
    Relation relation = open_table(Table::scope, AccessShareLock);
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    TableScanDesc scan = table_beginscan(relation, snapshot, 0, nullptr);
    TupleTableSlot* slot = table_slot_create(relation, nullptr);
    bool found = false;
    while (!found && table_scan_getnextslot(scan, ForwardScanDirection, slot)) {
        found = named(slot, name);
        if (found) use(slot);
    }
    ExecDropSingleTupleTableSlot(slot);
    table_endscan(scan);
    UnregisterSnapshot(snapshot);
    table_close(relation, AccessShareLock);
    return found;
}

}  // namespace

void init_scopes() {
    on_invalidation(Table::scope, forget_scopes);
}

const Scope* find_scope(std::string_view name) {
    if (name.empty() || name.size() > core::max_scope_bytes) return nullptr;
    std::array<char, NAMEDATALEN> key{};
    std::copy(name.begin(), name.end(), key.begin());

    prepare_cache();
    bool found;
    if (void* hit = hash_search(cache, key.data(), HASH_FIND, &found); found)
        return static_cast<const Scope*>(hit);

    // Read first, enter after: an error in between must not leave half an entry.
    Scope scope{};
    std::copy(key.begin(), key.end(), scope.name);
    if (!scan_for(name, [&](TupleTableSlot* slot) { read_scope(slot, scope); })) return nullptr;
    auto* entry = static_cast<Scope*>(hash_search(cache, key.data(), HASH_ENTER, &found));
    *entry = scope;
    return entry;
}

const Scope& usable_scope(std::optional<std::string_view> name, const char* function) {
    const Scope* scope = name ? find_scope(*name) : nullptr;
    if (scope == nullptr) report::unknown_scope(name);
    if (!has_privs_of_role(GetUserId(), scope->owner)) report::not_scope_member(*name, function);
    return *scope;
}

void insert_scope(const NewScope& scope) {
    Relation relation = open_table(Table::scope, ShareRowExclusiveLock);
    if (scan_for(scope.name, [](TupleTableSlot*) {}))
        ereport(ERROR, (errcode(ERRCODE_DUPLICATE_OBJECT),
                        errmsg("scope \"%.*s\" already exists", static_cast<int>(scope.name.size()),
                               scope.name.data()),
                        errdetail("Scope names are unique in a database."),
                        errhint("Choose another name, or use the scope that exists.")));

    const Oid sequence = get_relname_relid("scope_id", RelationGetNamespace(relation));
    Row<columns> row;
    row.set_int(column_id, static_cast<std::int32_t>(nextval_internal(sequence, false)));
    row.set_text(column_name, scope.name);
    row.set(column_owner, ObjectIdGetDatum(scope.owner));
    row.set_pointer(column_ttl, scope.ttl);
    row.set_pointer(column_wait, scope.wait);
    row.set(column_request_required, BoolGetDatum(scope.request_required));
    row.set(column_tenant_required, BoolGetDatum(scope.tenant_required));
    row.set_pointer(column_request_exclude, scope.request_exclude);
    TupleTableSlot* slot = new_row(relation, row.values(), row.nulls());
    insert_row(relation, slot, false);
    ExecDropSingleTupleTableSlot(slot);

    CacheInvalidateRelcache(relation);
    table_close(relation, NoLock);
    CommandCounterIncrement();
}

}  // namespace idem::pg
