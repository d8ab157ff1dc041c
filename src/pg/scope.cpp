#include "pg/scope.hpp"

#include "core/key.hpp"
#include "pg/boundary.hpp"
#include "pg/report.hpp"
#include "pg/scope_row.hpp"

namespace idem::pg {
namespace {

using namespace scope_row;

// Entries never move, so the second table may point into the first.
struct ById {
    std::int32_t id;  // the hash key
    const Scope* scope;
};

constinit MemoryContext cache_context = nullptr;
constinit HTAB* by_name = nullptr;
constinit HTAB* by_id = nullptr;
constinit bool valid = false;  // set before anything is read: what changes meanwhile resets it

void forget_scopes() {
    valid = false;
}

HTAB* make_table(const char* name, Size key_size, Size entry_size, int kind) {
    HASHCTL control{};
    control.keysize = key_size;
    control.entrysize = entry_size;
    control.hcxt = cache_context;
    return hash_create(name, 16, &control, HASH_ELEM | HASH_CONTEXT | kind);
}

// Only here, at the start of a lookup, is an outdated cache freed: an invalidation may arrive while
// a scope is still in use. Asking for news makes a change count at once, even in the middle of a
// transaction.
void prepare_cache() {
    AcceptInvalidationMessages();
    if (valid) return;
    // Forgotten first: should memory run out below, it must not be deleted twice.
    by_name = by_id = nullptr;
    if (MemoryContext old = std::exchange(cache_context, nullptr); old != nullptr)
        MemoryContextDelete(old);
    cache_context = AllocSetContextCreate(CacheMemoryContext, "idem scopes", ALLOCSET_SMALL_SIZES);
    by_name = make_table("idem scopes", NAMEDATALEN, sizeof(Scope), HASH_STRINGS);
    by_id = make_table("idem scopes by id", sizeof(std::int32_t), sizeof(ById), HASH_BLOBS);
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

// Reads first, enters after: an error in between must not leave half an entry.
template <class Match>
const Scope* read_into_cache(Match match) {
    Scope scope{};
    if (!scan_for(match, [&](TupleTableSlot* slot) { read_scope(slot, scope); })) return nullptr;
    auto* entry = static_cast<Scope*>(hash_search(by_name, scope.name, HASH_ENTER, nullptr));
    *entry = scope;
    auto* reference = static_cast<ById*>(hash_search(by_id, &scope.id, HASH_ENTER, nullptr));
    reference->scope = entry;
    return entry;
}

// Calls that would have begun something in the scope, had it been there.
bool begins_something(std::string_view function) {
    constexpr std::array<std::string_view, 6> functions = {"claim", "try_claim", "execute",
                                                           "once",  "once_each", "advance"};
    return std::ranges::find(functions, function) != functions.end();
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
    std::array<char, NAMEDATALEN> key{};
    std::copy(name.begin(), name.end(), key.begin());
    prepare_cache();
    if (const void* hit = hash_search(by_name, key.data(), HASH_FIND, nullptr); hit != nullptr)
        return static_cast<const Scope*>(hit);
    return read_into_cache(WithName{name});
}

const Scope* find_scope_by_id(std::int32_t id) {
    prepare_cache();
    if (const void* hit = hash_search(by_id, &id, HASH_FIND, nullptr); hit != nullptr)
        return static_cast<const ById*>(hit)->scope;
    return read_into_cache(WithId{id});
}

bool may_observe(Oid owner) {
    return has_privs_of_role(GetUserId(), owner) || has_privs_of_role(GetUserId(), ROLE_PG_MONITOR);
}

const char* nearest_scope(std::string_view name) {
    constexpr int max_distance = 3;
    if (name.size() > core::max_scope_bytes) return nullptr;
    // Text that an extension or a cast let slip through: its characters may not end where it does.
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
        return false;
    };
    (void)scan_for(consider, [](TupleTableSlot*) {});
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

}  // namespace idem::pg
