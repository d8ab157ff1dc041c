#include "pg/scope.hpp"

#include "pg/report.hpp"
#include "core/duration.hpp"
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

std::optional<std::int64_t> read_limit(TupleTableSlot* slot, Column which, const char* name) {
    if (!column(slot, which)) return std::nullopt;
    return read_duration(slot, which, name);
}

std::optional<std::int32_t> read_int(TupleTableSlot* slot, Column which) {
    const auto value = column(slot, which);
    return value ? std::optional(DatumGetInt32(*value)) : std::nullopt;
}

bool read_bool(TupleTableSlot* slot, Column which) {
    return DatumGetBool(*column(slot, which));
}

PathList read_path_list(TupleTableSlot* slot, Column which) {
    return read_paths(DatumGetArrayTypeP(*column(slot, which)), cache_context);
}

TextList read_text_list(TupleTableSlot* slot, Column which) {
    return read_texts(DatumGetArrayTypeP(*column(slot, which)), cache_context,
                      [](std::string_view text) { return text; });
}

// The list as the scope's request_lists have it.
std::string_view list_text(Datum list) {
    return OidOutputFunctionCall(F_ARRAY_OUT, list);
}

PathList list_of_text(std::string_view text) {
    char* literal = pnstrdup(text.data(), text.size());
    const Datum list = OidInputFunctionCall(F_ARRAY_IN, literal, TEXTOID, -1);
    return read_paths(DatumGetArrayTypeP(list), CurrentMemoryContext);
}

// A constraint of the table sees to it that the list is there.
core::ListNumber number_in(TextList lists, Datum list) {
    if (ArrayGetNItems(ARR_NDIM(DatumGetArrayTypeP(list)), ARR_DIMS(DatumGetArrayTypeP(list))) == 0)
        return 0;
    const auto found = std::ranges::find(lists, list_text(list));
    if (found == lists.end()) elog(ERROR, "unexpected request_exclude in table idem.scope");
    return static_cast<core::ListNumber>(found - lists.begin()) + 1;
}

WeakKeys read_weak_keys(TupleTableSlot* slot) {
    const auto rule = weak_keys_of(view_of(DatumGetTextPP(*column(slot, column_weak_keys))));
    if (!rule) elog(ERROR, "unexpected weak_keys in table idem.scope");
    return *rule;
}

StoreRequest read_store_request(TupleTableSlot* slot) {
    const auto rule =
        store_request_of(view_of(DatumGetTextPP(*column(slot, column_store_request))));
    if (!rule) elog(ERROR, "unexpected store_request in table idem.scope");
    return *rule;
}

TenantFrom read_tenant_from(TupleTableSlot* slot) {
    const auto from = tenant_from_of(view_of(DatumGetTextPP(*column(slot, column_tenant_from))));
    if (!from) elog(ERROR, "unexpected tenant_from in table idem.scope");
    return *from;
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
    scope.store_request = read_store_request(slot);
    scope.answer_ttl = read_limit(slot, column_answer_ttl, "answer_ttl");
    scope.min_ttl = read_limit(slot, column_min_ttl, "min_ttl");
    scope.request_lists = read_text_list(slot, column_request_lists);
    scope.request_exclude = {read_path_list(slot, column_request_exclude),
                             number_in(scope.request_lists, *column(slot, column_request_exclude))};
    scope.response_exclude = read_path_list(slot, column_response_exclude);
    scope.header_exclude = read_text_list(slot, column_header_exclude);
    scope.tenant_from = read_tenant_from(slot);
    scope.max_answer_size = DatumGetInt32(*column(slot, column_max_answer_size));
    scope.final_sqlstates = read_text_list(slot, column_final_sqlstates);
    scope.records = read_bool(slot, column_records);
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

void set_limit(ScopeRow& row, Column which, const Interval* limit) {
    if (limit != nullptr && duration("limit", *limit) == 0) return row.clear(which);
    row.set_pointer(which, limit);
}

// The list gets a number when it is first used, and has it again when it returns: fingerprints keep
// the number. Changes of scopes are serialised, so that two lists never get the same number.
void number_request_list(ScopeRow& row) {
    const Datum list = row.values()[column_request_exclude];
    if (row.nulls()[column_request_lists])
        row.set_pointer(column_request_lists, construct_empty_array(TEXTOID));
    ArrayType* lists = DatumGetArrayTypeP(row.values()[column_request_lists]);
    const TextElements elements = elements_of(lists);
    const std::string_view text = list_text(list);
    bool known = text == "{}";
    for (int i = 0; i < elements.count; ++i) known = known || elements[i] == text;
    if (known) return;
    int next = elements.count + 1;
    row.set(column_request_lists,
            array_set_element(PointerGetDatum(lists), 1, &next, PointerGetDatum(text_of(text)),
                              false, -1, -1, false, TYPALIGN_INT));
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
    row.set_pointer(column_final_sqlstates, rules.final_sqlstates);
    if (rules.store_request) row.set_text(column_store_request, *rules.store_request);
    set_limit(row, column_answer_ttl, rules.answer_ttl);
    set_limit(row, column_min_ttl, rules.min_ttl);
    row.set_pointer(column_header_exclude, rules.header_exclude);
    if (rules.tenant_from) row.set_text(column_tenant_from, *rules.tenant_from);
    row.set_int(column_max_answer_size, rules.max_answer_size);
    row.set_bool(column_records, rules.records);
    if (rules.owner) row.set(column_owner, ObjectIdGetDatum(*rules.owner));
    row.set_pointer(column_request_lists, rules.request_lists);
    number_request_list(row);
}

// The scope's ttl must satisfy the scope's own limits.
void check_ttls(const ScopeRow& row) {
    const auto stored = [&row](Column which) {
        return duration("ttl", *DatumGetIntervalP(row.values()[which]));
    };
    const std::int64_t ttl = stored(column_ttl);
    if (!row.nulls()[column_min_ttl] && stored(column_min_ttl) > ttl)
        report::invalid_argument("min_ttl", "The minimum must not exceed the scope's ttl.",
                                 "Pass a shorter \"min_ttl\", or a longer \"ttl\" as well.");
    if (!row.nulls()[column_answer_ttl] && stored(column_answer_ttl) > ttl)
        report::invalid_argument("answer_ttl",
                                 "An answer must not be kept for longer than the scope's ttl.",
                                 "Pass a shorter \"answer_ttl\", or a longer \"ttl\" as well.");
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

StoredScope read_row(TupleDesc table, TupleTableSlot* slot) {
    HeapTuple tuple = ExecCopySlotHeapTuple(slot);
    StoredScope stored{tuple->t_self, {}};
    for (int i = 0; i < columns; ++i) {
        bool null;
        const Datum value = heap_getattr(tuple, i + 1, table, &null);
        if (!null) stored.row.set(i, value);
    }
    return stored;
}

template <class Match>
std::optional<StoredScope> find_stored(Relation relation, Match match) {
    std::optional<StoredScope> stored;
    trivial<std::optional<StoredScope>>();
    scan_for(match,
             [&](TupleTableSlot* slot) { stored = read_row(RelationGetDescr(relation), slot); });
    return stored;
}

StoredScope read_stored(Relation relation, std::int32_t id) {
    const auto stored = find_stored(relation, WithId{id});
    if (!stored) elog(ERROR, "scope %d is gone although its table is locked", id);
    return *stored;
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

std::optional<StoreRequest> store_request_of(std::string_view text) {
    if (text == "never") return StoreRequest::never;
    if (text == "unfinished") return StoreRequest::unfinished;
    if (text == "always") return StoreRequest::always;
    return std::nullopt;
}

std::optional<TenantFrom> tenant_from_of(std::string_view text) {
    if (text == "argument") return TenantFrom::argument;
    if (text == "role") return TenantFrom::role;
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

std::optional<bool> records_after_change(std::int32_t id) {
    AcceptInvalidationMessages();
    if (valid) return std::nullopt;
    std::optional<bool> records;
    const ById* before = by_id.find(id);
    scan_for(WithId{id}, [&](TupleTableSlot* slot) {
        records = read_bool(slot, column_records);
        if (before != nullptr && before->scope->tenant_from != read_tenant_from(slot))
            report::serialization_failure("The scope's \"tenant_from\" was changed meanwhile.");
    });
    return records;
}

PathList request_list(const Scope& scope, const bytea* fingerprint) {
    const core::ListNumber number = list_number(fingerprint);
    if (number == scope.request_exclude.number) return scope.request_exclude.paths;
    if (number == 0) return {};
    if (number <= scope.request_lists.size()) return list_of_text(scope.request_lists[number - 1]);
    std::optional<PathList> list;
    trivial<std::optional<PathList>>();
    scan_for(WithId{scope.id}, [&](TupleTableSlot* slot) {
        const TextElements lists =
            elements_of(DatumGetArrayTypeP(*column(slot, column_request_lists)));
        if (number <= static_cast<core::ListNumber>(lists.count))
            list = list_of_text(lists[static_cast<int>(number) - 1]);
    });
    if (!list) report::unknown_request_list(scope.name, number);
    return *list;
}

std::int64_t scope_row::ttl(TupleTableSlot* slot) {
    const auto value = column(slot, column_ttl);
    if (!value) return 0;
    const Interval& ttl = *DatumGetIntervalP(*value);
    return core::fixed_duration(ttl.month, ttl.day, ttl.time).value_or(0);
}

std::optional<std::int64_t> scope_row::answer_ttl(TupleTableSlot* slot) {
    return read_limit(slot, column_answer_ttl, "answer_ttl");
}

bool is_monitor() {
    return has_privs_of_role(GetUserId(), ROLE_PG_MONITOR);
}

bool may_observe(Oid owner) {
    return has_privs_of_role(GetUserId(), owner) || is_monitor();
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

// ---- Settings as text ---------------------------------------------------------------------------

namespace {

// A value of the column, or of an argument of idem.create_scope(), as text; NULL for NULL.
const char* text_of_value(Oid type, Datum value, bool null) {
    if (null) return nullptr;
    Oid output;
    bool is_varlena;
    getTypeOutputInfo(type, &output, &is_varlena);
    return OidOutputFunctionCall(output, value);
}

const char* setting_text(TupleDesc table, const ScopeRow& row, int which) {
    const auto i = static_cast<std::size_t>(which);
    return text_of_value(TupleDescAttr(table, which)->atttypid, row.values()[i], row.nulls()[i]);
}

bool same_text(const char* a, const char* b) {
    return a == nullptr || b == nullptr ? a == b : strcmp(a, b) == 0;
}

// Intervals are equal if they are as long as each other.
bool same_setting(TupleDesc table, const ScopeRow& a, const ScopeRow& b, int which) {
    const auto i = static_cast<std::size_t>(which);
    const bool lengths = TupleDescAttr(table, which)->atttypid == INTERVALOID;
    if (lengths && !a.nulls()[i] && !b.nulls()[i])
        return duration("", *DatumGetIntervalP(a.values()[i])) ==
               duration("", *DatumGetIntervalP(b.values()[i]));
    return same_text(setting_text(table, a, which), setting_text(table, b, which));
}

// The settings that differ, as a sentence; NULL if none does.
const char* differences(TupleDesc table, const ScopeRow& stored, const ScopeRow& given) {
    StringInfoData text;
    initStringInfo(&text);
    for (int i = column_owner; i < columns; ++i) {
        if (same_setting(table, stored, given, i)) continue;
        const char* is = setting_text(table, stored, i);
        const char* would_be = setting_text(table, given, i);
        appendStringInfo(&text, "%s\"%s\" is %s, not %s", text.len == 0 ? "" : "; ",
                         NameStr(TupleDescAttr(table, i)->attname), is == nullptr ? "NULL" : is,
                         would_be == nullptr ? "NULL" : would_be);
    }
    return text.len == 0 ? nullptr : psprintf("In the existing scope, %s.", text.data);
}

// A scope's settings are shown to its users only.
void require_equal(TupleDesc table, std::string_view name, const ScopeRow& stored,
                   const ScopeRow& given) {
    const Oid owner = DatumGetObjectId(stored.values()[column_owner]);
    if (!has_privs_of_role(GetUserId(), owner)) report::scope_exists(name);
    const char* differing = differences(table, stored, given);
    if (differing != nullptr) report::scope_differs(name, differing);
}

// The arguments of idem.create_scope() as it is installed, with their defaults.
struct CreateFunction {
    int arguments;
    Oid* types;
    char** names;
    char* modes;
    List* defaults;  // of the last arguments

    // The constant that stands for the argument if it is not given; NULL if there is none.
    const Const* default_of(int argument) const {
        const int i = argument - (arguments - list_length(defaults));
        const auto* node = i < 0 ? nullptr : static_cast<const Node*>(list_nth(defaults, i));
        return node != nullptr && IsA(node, Const) ? reinterpret_cast<const Const*>(node) : nullptr;
    }
};

CreateFunction read_create_function() {
    List* name = list_make2(makeString(pstrdup("idem")), makeString(pstrdup("create_scope")));
    const Oid any_arguments = InvalidOid;
    const Oid oid = LookupFuncName(name, -1, &any_arguments, false);
    HeapTuple tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(oid));
    if (!HeapTupleIsValid(tuple)) elog(ERROR, "function %u is gone", oid);
    CreateFunction function{};
    function.arguments =
        get_func_arg_info(tuple, &function.types, &function.names, &function.modes);
    bool null;
    const Datum defaults = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_proargdefaults, &null);
    if (!null) function.defaults = castNode(List, stringToNode(TextDatumGetCString(defaults)));
    ReleaseSysCache(tuple);
    return function;
}

// The column that keeps the argument's value; -1 for none.
int column_of_argument(TupleDesc table, const char* name) {
    for (int i = column_owner; i < columns; ++i)
        if (strcmp(NameStr(TupleDescAttr(table, i)->attname), name) == 0) return i;
    return -1;
}

const char* literal(Oid type, const char* value) {
    if (type == BOOLOID) return *value == 't' ? "true" : "false";
    return type == INT4OID || type == INT8OID ? value : quote_literal_cstr(value);
}

// Appends the argument to the call unless its default is the stored value. The owner's default is
// the role that makes the call, so it is always given.
void append_argument(StringInfo call, TupleDesc table, const ScopeRow& row,
                     const CreateFunction& function, int argument) {
    const char* name = function.names[argument];
    const int column = column_of_argument(table, name);
    if (column < 0) return;
    const char* value = setting_text(table, row, column);
    const Const* preset = function.default_of(argument);
    const bool is_default =
        preset != nullptr && column != column_owner &&
        same_text(value, text_of_value(preset->consttype, preset->constvalue, preset->constisnull));
    if (is_default || value == nullptr) return;
    appendStringInfo(call, ", %s => %s", name,
                     literal(TupleDescAttr(table, column)->atttypid, value));
}

}  // namespace

const char* scope_definition(std::int32_t id) {
    Relation relation = open_table(Table::scope, AccessShareLock);
    const StoredScope scope = read_stored(relation, id);
    const TupleDesc table = RelationGetDescr(relation);
    const CreateFunction function = read_create_function();
    StringInfoData call;
    initStringInfo(&call);
    appendStringInfo(&call, "SELECT idem.create_scope(%s",
                     quote_literal_cstr(setting_text(table, scope.row, column_name)));
    for (int i = 0; i < function.arguments; ++i)
        append_argument(&call, table, scope.row, function, i);
    appendStringInfoString(&call, ");");
    table_close(relation, AccessShareLock);
    return call.data;
}

// ---- Changes ------------------------------------------------------------------------------------

void lock_scopes() {
    table_close(open_scopes(), NoLock);
}

namespace {

// Closes the table.
void insert_checked(Relation relation, const ScopeRow& row,
                    [[maybe_unused]] const ScopeRules& rules) {
    // The row goes past the table's NOT NULL constraints, so check them here.
    Assert(rules.ttl != nullptr && rules.lease != nullptr && rules.wait != nullptr);
    Assert(rules.request_exclude != nullptr && rules.response_exclude != nullptr && rules.owner);
    Assert(rules.final_sqlstates != nullptr && rules.store_request);
    Assert(rules.header_exclude != nullptr && rules.tenant_from && rules.records);
    TupleTableSlot* slot = new_row(relation, row.values(), row.nulls());
    insert_row(relation, slot);
    ExecDropSingleTupleTableSlot(slot);
    announce_change(relation);
}

}  // namespace

bool insert_scope(std::string_view name, const ScopeRules& rules, NameTaken taken) {
    Relation relation = open_scopes();
    ScopeRow row;
    row.set_text(column_name, name);
    set_rules(row, rules);
    check_ttls(row);
    if (const auto existing = find_stored(relation, WithName{name})) {
        if (taken == NameTaken::refused) report::scope_exists(name);
        row.set(column_request_lists, existing->row.values()[column_request_lists]);
        require_equal(RelationGetDescr(relation), name, existing->row, row);
        table_close(relation, NoLock);
        return false;
    }
    row.set_int(column_id, next_scope_id());
    insert_checked(relation, row, rules);
    return true;
}

void update_scope(std::int32_t id, const ScopeRules& rules) {
    Relation relation = open_scopes();
    StoredScope scope = read_stored(relation, id);
    set_rules(scope.row, rules);
    check_ttls(scope.row);
    TupleTableSlot* slot = new_row(relation, scope.row.values(), scope.row.nulls());
    check_changed(update_row(relation, scope.tid, slot));
    ExecDropSingleTupleTableSlot(slot);
    announce_change(relation);
}

void delete_scope(std::int32_t id) {
    remove_scope(id);
    note_dropped_scope(id);
}

// ---- Scopes that come from another server -------------------------------------------------------

namespace {

struct ScopeText {
    std::int32_t id;
    const char* json;
};

int by_scope_id(const ListCell* a, const ListCell* b) {
    const auto id_of = [](const ListCell* cell) {
        return static_cast<const ScopeText*>(lfirst(cell))->id;
    };
    return id_of(a) < id_of(b) ? -1 : id_of(a) > id_of(b);
}

// How jsonb shows a value of the column.
jbvType json_type(Oid type) {
    if (type == BOOLOID) return jbvBool;
    return type == INT4OID || type == INT8OID ? jbvNumeric : jbvString;
}

bool is_array(const JsonbValue& value) {
    return value.type == jbvBinary && JsonContainerIsArray(value.val.binary.data);
}

bool is_string_array(const JsonbValue& value) {
    if (!is_array(value)) return false;
    JsonbContainer* array = value.val.binary.data;
    for (std::uint32_t i = 0; i < JsonContainerSize(array); ++i)
        if (getIthJsonbValueFromContainer(array, i)->type != jbvString) return false;
    return true;
}

void check_scope_member(Jsonb* object, Form_pg_attribute column) {
    const char* name = NameStr(column->attname);
    JsonbValue value;
    if (getKeyJsonValueFromContainer(&object->root, name, static_cast<int>(strlen(name)), &value) ==
        nullptr)
        report::malformed_identity(psprintf("A scope has no member \"%s\".", name));
    if (value.type == jbvNull && !column->attnotnull) return;
    const bool fits = column->atttypid == TEXTARRAYOID ? is_string_array(value)
                                                       : value.type == json_type(column->atttypid);
    if (!fits)
        report::malformed_identity(psprintf("Member \"%s\" of a scope has another type.", name));
}

void check_owner_exists(Jsonb* object) {
    JsonbValue owner;
    constexpr std::string_view member = "owner";
    (void)getKeyJsonValueFromContainer(&object->root, member.data(),
                                       static_cast<int>(member.size()), &owner);
    text* name = text_of({owner.val.string.val, static_cast<std::size_t>(owner.val.string.len)});
    LOCAL_FCINFO(call, 1);
    InitFunctionCallInfoData(*call, nullptr, 1, InvalidOid, nullptr, nullptr);
    call->args[0] = {PointerGetDatum(name), false};
    (void)to_regrole(call);
    if (call->isnull) report::imported_owner_missing(view_of(name));
}

// jsonb_populate_record() takes the type of the row from the expression that calls it.
Datum populate_record(Jsonb* object, Oid row_type) {
    FmgrInfo function;
    fmgr_info(F_JSONB_POPULATE_RECORD, &function);
    List* arguments = list_make2(makeNullConst(row_type, -1, InvalidOid),
                                 makeNullConst(JSONBOID, -1, InvalidOid));
    FuncExpr* expression = makeFuncExpr(F_JSONB_POPULATE_RECORD, row_type, arguments, InvalidOid,
                                        InvalidOid, COERCE_EXPLICIT_CALL);
    fmgr_info_set_expr(reinterpret_cast<Node*>(expression), &function);
    LOCAL_FCINFO(call, 2);
    InitFunctionCallInfoData(*call, &function, 2, InvalidOid, nullptr, nullptr);
    call->args[0] = {Datum{0}, true};
    call->args[1] = {JsonbPGetDatum(object), false};
    const Datum row = FunctionCallInvoke(call);
    if (call->isnull) elog(ERROR, "an object gave no row");
    return row;
}

}  // namespace

void append_scopes(StringInfo json) {
    List* scopes = NIL;
    scan_committed(Table::scope, [&](TupleTableSlot* slot) {
        auto* scope = static_cast<ScopeText*>(palloc(sizeof(ScopeText)));
        scope->id = DatumGetInt32(*column(slot, column_id));
        const Datum row = ExecFetchSlotHeapTupleDatum(slot);
        scope->json = text_to_cstring(DatumGetTextPP(DirectFunctionCall1(row_to_json, row)));
        scopes = lappend(scopes, scope);
    });
    list_sort(scopes, by_scope_id);
    appendStringInfoChar(json, '[');
    const char* separator = "";
    for (int i = 0; i < list_length(scopes); ++i) {
        const auto* scope = static_cast<const ScopeText*>(list_nth(scopes, i));
        appendStringInfo(json, "%s%s", separator, scope->json);
        separator = ",";
    }
    appendStringInfoChar(json, ']');
}

HeapTupleHeader read_scope_object(Jsonb* object) {
    Relation relation = open_table(Table::scope, AccessShareLock);
    const TupleDesc table = RelationGetDescr(relation);
    for (int i = 0; i < table->natts; ++i) check_scope_member(object, TupleDescAttr(table, i));
    if (static_cast<int>(JsonContainerSize(&object->root)) != table->natts)
        report::malformed_identity("A scope has a setting that this release does not know.");
    check_owner_exists(object);
    const Datum row = populate_record(object, relation->rd_rel->reltype);
    table_close(relation, AccessShareLock);
    return DatumGetHeapTupleHeader(row);
}

void require_same_rules(std::int32_t id, const ScopeRules& rules) {
    Relation relation = open_scopes();
    const StoredScope stored = read_stored(relation, id);
    ScopeRow given;
    set_rules(given, rules);
    const char* differing = differences(RelationGetDescr(relation), stored.row, given);
    if (differing != nullptr)
        report::imported_scope_differs(
            setting_text(RelationGetDescr(relation), stored.row, column_name), differing);
    table_close(relation, NoLock);
}

void place_scope(std::int32_t id, std::string_view name, const ScopeRules& rules) {
    Relation relation = open_scopes();
    Assert(!find_stored(relation, WithId{id}) && !find_stored(relation, WithName{name}));
    ScopeRow row;
    row.set_int(column_id, id);
    row.set_text(column_name, name);
    set_rules(row, rules);
    check_ttls(row);
    insert_checked(relation, row, rules);
}

void remove_scope(std::int32_t id) {
    Relation relation = open_scopes();
    StoredScope scope = read_stored(relation, id);
    check_changed(compat::delete_row(relation, &scope.tid, compat::Waiting::yes));
    announce_change(relation);
}

}  // namespace idem::pg
