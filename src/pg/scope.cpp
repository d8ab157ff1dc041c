#include "pg/scope.hpp"

#include "pg/report.hpp"
#include "core/key.hpp"
#include "pg/boundary.hpp"
#include "pg/hash_table.hpp"
#include "pg/scope_ids.hpp"

namespace idem::pg {
namespace {

using namespace scope_row;

// Entries never move, so the table by id may point into the table by name.
struct ById {
    std::int32_t id;  // the hash key
    const Scope* scope;
};

constinit MemoryContext cache_context = nullptr;
constinit HashTable<char[NAMEDATALEN], Scope, HASH_STRINGS> by_name;
constinit HashTable<std::int32_t, ById> by_id;
constinit bool valid = false;  // set before anything is read: a change meanwhile resets it

void forget_scopes() {
    valid = false;
}

// An outdated cache is freed only here, at the start of a lookup: an invalidation may arrive while
// a scope is in use. Accepting invalidations makes a change effective at once, even in the middle
// of a transaction.
void prepare_cache() {
    AcceptInvalidationMessages();
    if (valid) return;
    // Forget the tables first: if memory runs out below, the context must not be deleted twice.
    by_name = {};
    by_id = {};
    if (MemoryContext old = std::exchange(cache_context, nullptr); old != nullptr)
        MemoryContextDelete(old);
    cache_context = AllocSetContextCreate(CacheMemoryContext, "idem scopes", ALLOCSET_SMALL_SIZES);
    by_name.create("idem scopes", 16, cache_context);
    by_id.create("idem scopes by id", 16, cache_context);
    valid = true;
}

std::int64_t read_duration(TupleTableSlot* slot, Column which, const char* name) {
    return duration(name, *DatumGetIntervalP(*column(slot, which)));
}

std::optional<std::int32_t> read_int(TupleTableSlot* slot, Column which) {
    const auto value = column(slot, which);
    return value ? std::optional(DatumGetInt32(*value)) : std::nullopt;
}

bool read_bool(TupleTableSlot* slot, Column which) {
    return DatumGetBool(*column(slot, which));
}

PathList read_path_list(TupleTableSlot* slot, Column which) {
    const bool current = has_column(slot->tts_tupleDescriptor, column_transient_sqlstates);
    return read_paths(DatumGetArrayTypeP(*column(slot, which)), cache_context,
                      current ? Quotes::enclose : Quotes::literal);
}

TextList read_text_list(TupleTableSlot* slot, Column which) {
    const auto value = column(slot, which);
    if (!value) return {};
    return read_texts(DatumGetArrayTypeP(*value), cache_context,
                      [](std::string_view text) { return text; });
}

WeakKeys read_weak_keys(TupleTableSlot* slot) {
    const auto rule = weak_keys_of(view_of(DatumGetTextPP(*column(slot, column_weak_keys))));
    if (!rule) elog(ERROR, "unexpected weak_keys in table idem.scope");
    return *rule;
}

void read_scope(TupleTableSlot* slot, Scope& scope) {
    const std::string_view name = view_of(DatumGetTextPP(*column(slot, column_name)));
    static_assert(core::max_scope_bytes < NAMEDATALEN);
    std::copy_n(name.begin(), std::min(name.size(), core::max_scope_bytes), scope.name);
    scope.id = DatumGetInt32(*column(slot, column_id));
    scope.owner = DatumGetObjectId(*column(slot, column_owner));
    scope.ttl = read_duration(slot, column_ttl, "ttl");
    scope.lease = read_duration(slot, column_lease, "lease");
    scope.wait = read_duration(slot, column_wait, "wait");
    scope.max_attempts = read_int(slot, column_max_attempts);
    scope.claims_per_minute = read_int(slot, column_claims_per_minute);
    scope.weak_keys = read_weak_keys(slot);
    scope.request_required = read_bool(slot, column_request_required);
    scope.tenant_required = read_bool(slot, column_tenant_required);
    scope.reject_stale_keys = read_bool(slot, column_reject_stale_keys);
    scope.store_response = read_bool(slot, column_store_response);
    scope.request_exclude = read_path_list(slot, column_request_exclude);
    scope.response_exclude = read_path_list(slot, column_response_exclude);
    scope.transient_sqlstates = read_text_list(slot, column_transient_sqlstates);
}

// The row is read before it is entered: an error in between must not leave half an entry.
template <class Match>
const Scope* read_into_cache(Match match) {
    Scope scope{};
    if (!scan_for(match, [&](TupleTableSlot* slot) { read_scope(slot, scope); })) return nullptr;
    bool found;
    Scope* entry = by_name.enter(scope.name, found);
    *entry = scope;
    by_id.enter(scope.id, found)->scope = entry;
    return entry;
}

// Functions that would have started an operation in the scope if it existed.
bool begins_something(std::string_view function) {
    constexpr std::array<std::string_view, 6> functions = {"claim", "try_claim", "execute",
                                                           "once",  "once_each", "advance"};
    return std::ranges::find(functions, function) != functions.end();
}

using ScopeRow = Row<columns>;

void set_limit(ScopeRow& row, Column which, std::optional<std::int32_t> limit) {
    if (limit == no_limit) return row.clear(which);
    row.set_int(which, limit);
}

void set_rules(ScopeRow& row, const ScopeRules& rules) {
    row.set_pointer(column_ttl, rules.ttl);
    row.set_pointer(column_lease, rules.lease);
    row.set_pointer(column_wait, rules.wait);
    row.set_bool(column_request_required, rules.request_required);
    row.set_pointer(column_request_exclude, rules.request_exclude);
    row.set_bool(column_tenant_required, rules.tenant_required);
    row.set_bool(column_reject_stale_keys, rules.reject_stale_keys);
    set_limit(row, column_max_attempts, rules.max_attempts);
    set_limit(row, column_claims_per_minute, rules.claims_per_minute);
    if (rules.weak_keys) row.set_text(column_weak_keys, *rules.weak_keys);
    row.set_bool(column_store_response, rules.store_response);
    row.set_pointer(column_response_exclude, rules.response_exclude);
    row.set_pointer(column_transient_sqlstates, rules.transient_sqlstates);
    if (rules.owner) row.set(column_owner, ObjectIdGetDatum(*rules.owner));
}

Relation open_scopes() {
    return open_table(Table::scope, ShareRowExclusiveLock);
}

void announce_change(Relation relation) {
    CacheInvalidateRelcache(relation);
    table_close(relation, NoLock);
    CommandCounterIncrement();
}

// The row of a scope as it is stored.
struct StoredScope {
    ItemPointerData tid;
    ScopeRow row;
};

StoredScope read_stored(Relation relation, std::int32_t id) {
    HeapTuple tuple = nullptr;
    if (!scan_for(WithId{id}, [&](TupleTableSlot* slot) { tuple = ExecCopySlotHeapTuple(slot); }))
        elog(ERROR, "scope %d is gone although its table is locked", id);
    StoredScope stored{tuple->t_self, {}};
    const TupleDesc table = RelationGetDescr(relation);
    for (int i = 0; i < columns && has_column(table, i); ++i) {
        bool null;
        const Datum value = heap_getattr(tuple, i + 1, table, &null);
        if (!null) stored.row.set(i, value);
    }
    return stored;
}

void check_changed(TM_Result result) {
    if (result != TM_Ok) elog(ERROR, "unexpected result %d of changing a scope", result);
}

}  // namespace

void init_scopes() {
    on_invalidation(Table::scope, forget_scopes);
}

std::optional<WeakKeys> weak_keys_of(std::string_view text) {
    if (text == "allow") return WeakKeys::allow;
    if (text == "warn") return WeakKeys::warn;
    if (text == "reject") return WeakKeys::reject;
    return std::nullopt;
}

const Scope* find_scope(std::string_view name) {
    if (name.empty() || name.size() > core::max_scope_bytes) return nullptr;
    char key[NAMEDATALEN] = {};
    std::copy(name.begin(), name.end(), key);
    prepare_cache();
    if (const Scope* hit = by_name.find(key); hit != nullptr) return hit;
    return read_into_cache(WithName{name});
}

const Scope* find_scope_by_id(std::int32_t id) {
    prepare_cache();
    if (const ById* hit = by_id.find(id); hit != nullptr) {
        Assert(hit->scope->id == id);
        return hit->scope;
    }
    return read_into_cache(WithId{id});
}

bool may_observe(Oid owner) {
    return has_privs_of_role(GetUserId(), owner) || has_privs_of_role(GetUserId(), ROLE_PG_MONITOR);
}

const char* nearest_scope(std::string_view name) {
    constexpr int max_distance = 3;
    if (name.size() > core::max_scope_bytes) return nullptr;
    // A cast or an extension may produce text that is not valid in the encoding, whose last
    // character reaches beyond its end.
    if (!pg_verify_mbstr(GetDatabaseEncoding(), name.data(), static_cast<int>(name.size()), true))
        return nullptr;
    int best = std::min(max_distance, static_cast<int>(name.size()) / 2) + 1;
    const char* nearest = nullptr;
    const auto consider = [&](TupleTableSlot* slot) {
        const std::string_view other = view_of(DatumGetTextPP(*column(slot, column_name)));
        const int distance =
            varstr_levenshtein_less_equal(name.data(), static_cast<int>(name.size()), other.data(),
                                          static_cast<int>(other.size()), 1, 1, 1, best, true);
        const bool closer = distance < best || (distance == best && nearest && other < nearest);
        if (closer &&
            has_privs_of_role(GetUserId(), DatumGetObjectId(*column(slot, column_owner)))) {
            best = distance;
            nearest = pnstrdup(other.data(), other.size());
        }
    };
    scan_committed(Table::scope, consider);
    return nearest;
}

const Scope& usable_scope(std::optional<std::string_view> name, const char* function) {
    if (!name) report::no_scope();
    const Scope* scope = find_scope(*name);
    if (scope == nullptr)
        report::unknown_scope(*name, nearest_scope(*name), nullptr, begins_something(function));
    if (!has_privs_of_role(GetUserId(), scope->owner))
        report::not_scope_member(*name, scope->owner, function);
    return *scope;
}

void lock_scopes() {
    table_close(open_scopes(), NoLock);
}

void insert_scope(std::string_view name, const ScopeRules& rules) {
    Relation relation = open_scopes();
    if (scan_for(WithName{name}, [](TupleTableSlot*) {})) report::scope_exists(name);
    ScopeRow row;
    row.set_int(column_id, next_scope_id());
    row.set_text(column_name, name);
    set_rules(row, rules);
    // The row goes past the table's NOT NULL constraints, so check them here.
    Assert(rules.ttl != nullptr && rules.lease != nullptr && rules.wait != nullptr);
    Assert(rules.request_exclude != nullptr && rules.response_exclude != nullptr && rules.owner);
    Assert(!has_column(RelationGetDescr(relation), column_transient_sqlstates) ||
           rules.transient_sqlstates != nullptr);
    TupleTableSlot* slot = new_row(relation, row.values(), row.nulls());
    insert_row(relation, slot);
    ExecDropSingleTupleTableSlot(slot);
    announce_change(relation);
}

void update_scope(std::int32_t id, const ScopeRules& rules) {
    Relation relation = open_scopes();
    StoredScope scope = read_stored(relation, id);
    set_rules(scope.row, rules);
    TupleTableSlot* slot = new_row(relation, scope.row.values(), scope.row.nulls());
    check_changed(update_row(relation, scope.tid, slot, compat::Waiting::yes));
    ExecDropSingleTupleTableSlot(slot);
    announce_change(relation);
}

void delete_scope(std::int32_t id) {
    Relation relation = open_scopes();
    StoredScope scope = read_stored(relation, id);
    check_changed(compat::delete_row(relation, &scope.tid, compat::Waiting::yes));
    note_dropped_scope(id);
    announce_change(relation);
}

}  // namespace idem::pg
