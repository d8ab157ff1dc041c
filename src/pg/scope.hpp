// Scopes: the contract of a family of operations, cached per backend.
//
// The cache is dropped as a whole through relation cache invalidation of idem.scope, which
// pg/scope_admin and, for everybody else, a trigger announce (api/announce_change). What lookup
// hands out stays valid until the next lookup, so a function looks up once and keeps what outlives
// it elsewhere. Who changes scopes is pg/scope_admin.
//
// The table idem.scope: its columns, and the scan that both the cache and the administration make.
//
// Writing idem.scope. Changes are serialised by a lock on the table, kept to the transaction's end,
// and announced to every backend's cache, whose entries also go when the transaction rolls back.
#pragma once

#include "pg/boundary.hpp"
#include "pg/document.hpp"
#include "pg/server.hpp"
#include "pg/table.hpp"

namespace idem::pg {

// What happens to a new key that is easily used twice (see core/weakness.hpp).
enum class WeakKeys { allow, warn, reject };

struct Scope {
    char name[NAMEDATALEN];  // the hash key
    std::int32_t id;
    Oid owner;
    std::int64_t ttl;    // microseconds, as the other lengths of time
    std::int64_t lease;  // what a leased claim is renewed for
    std::int64_t wait;
    std::optional<std::int32_t> max_attempts;       // none: as many as it takes
    std::optional<std::int32_t> claims_per_minute;  // none: no limit; of each tenant
    WeakKeys weak_keys;
    bool request_required;
    bool tenant_required;
    bool reject_stale_keys;
    bool store_response;
    PathList request_exclude;
    PathList response_exclude;
    TextList transient_sqlstates;  // codes and classes, beside those that always are
};
static_assert(std::is_trivially_copyable_v<Scope> && std::is_trivially_destructible_v<Scope>);

// Nothing unless the text is allow, warn or reject.
std::optional<WeakKeys> weak_keys_of(std::string_view text);

// NULL when there is no such scope.
const Scope* find_scope(std::string_view name);

// The same for whoever has only a record, or the token of one. NULL: the scope was dropped.
const Scope* find_scope_by_id(std::int32_t id);

// The name most like this one, of the scopes that the current user may use; NULL if none is near.
const char* nearest_scope(std::string_view name);

// Finds the scope and checks that the current user has the privileges of its owner; raises ID008 or
// 42501. A scope whose owner was dropped is nobody's but the superuser's. function is for the
// message.
const Scope& usable_scope(std::optional<std::string_view> name, const char* function);

// Whether the current user may know the settings and figures of a scope, though no key of it: who
// may use it, and those who watch the server.
bool may_observe(Oid owner);

void init_scopes();

namespace scope_row {

enum Column {
    column_id,
    column_name,
    column_owner,
    column_ttl,
    column_lease,
    column_wait,
    column_request_required,
    column_request_exclude,
    column_tenant_required,
    column_reject_stale_keys,
    column_max_attempts,
    column_claims_per_minute,
    column_weak_keys,
    column_store_response,
    column_response_exclude,
    column_transient_sqlstates,  // since 0.3.0
    columns
};

// Until ALTER EXTENSION idem UPDATE is run, the table has the columns of an earlier release.
inline bool has_column(TupleDesc table, int which) {
    return which < table->natts;
}

inline std::optional<Datum> column(TupleTableSlot* slot, int which) {
    if (!has_column(slot->tts_tupleDescriptor, which)) return std::nullopt;
    bool null;
    const Datum value = slot_getattr(slot, which + 1, &null);
    return null ? std::nullopt : std::optional(value);
}

struct WithName {
    std::string_view name;
    bool operator()(TupleTableSlot* slot) const {
        return view_of(DatumGetTextPP(*column(slot, column_name))) == name;
    }
};

struct WithId {
    std::int32_t id;
    bool operator()(TupleTableSlot* slot) const {
        return DatumGetInt32(*column(slot, column_id)) == id;
    }
};

// Hands the row that matches to use(), under a snapshot of its own: the transaction's may be older
// than the scope. False when there is none.
template <class Match, class Use>
bool scan_for(Match match, Use use) {
    Relation relation = open_table(Table::scope, AccessShareLock);
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    TableScanDesc scan = compat::begin_table_scan(relation, snapshot);
    TupleTableSlot* slot = table_slot_create(relation, nullptr);
    bool found = false;
    while (!found && table_scan_getnextslot(scan, ForwardScanDirection, slot)) {
        found = match(slot);
        if (found) use(slot);
    }
    ExecDropSingleTupleTableSlot(slot);
    table_endscan(scan);
    UnregisterSnapshot(snapshot);
    table_close(relation, AccessShareLock);
    return found;
}

}  // namespace scope_row

// "None" for a limit that is none, where NULL means something else.
inline constexpr std::int32_t no_limit = -1;

// What create_scope() and alter_scope() set, checked. What is NULL or empty is left as it is.
struct ScopeRules {
    const Interval* ttl;
    const Interval* lease;
    const Interval* wait;
    std::optional<bool> request_required;
    ArrayType* request_exclude;
    std::optional<bool> tenant_required;
    std::optional<bool> reject_stale_keys;
    std::optional<std::int32_t> max_attempts;
    std::optional<std::int32_t> claims_per_minute;
    std::optional<std::string_view> weak_keys;
    std::optional<bool> store_response;
    ArrayType* response_exclude;
    ArrayType* transient_sqlstates;
    std::optional<Oid> owner;
};

// Waits for whoever is changing scopes. What was looked up before may be outdated after.
void lock_scopes();

// Raises 42710 when the name is taken.
void insert_scope(std::string_view name, const ScopeRules& rules);

// Both after lock_scopes(), with the id of a scope that was looked up since.
void update_scope(std::int32_t id, const ScopeRules& rules);
void delete_scope(std::int32_t id);

}  // namespace idem::pg
