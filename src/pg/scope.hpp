// Scopes: the settings of a family of operations. Their cache, the table behind it, and changes.
//
// The cache is per backend and is dropped as a whole by relation cache invalidation of idem.scope,
// which the functions below announce, and a trigger for all other changes
// (idem_internal.announce_change()). A scope that a lookup returns stays valid until the next
// lookup: a function looks up once and copies what has to live longer.
//
// Changes are serialised by a ShareRowExclusive lock on the table, which is kept until the
// transaction ends. When the transaction rolls back, the caches are dropped once more.
#pragma once

#include "pg/boundary.hpp"
#include "pg/document.hpp"
#include "pg/server.hpp"
#include "pg/table.hpp"

namespace idem::pg {

// What happens to a new key that is likely to be used twice (see core/weakness.hpp).
enum class WeakKeys { allow, warn, reject };

// How long a record keeps the request.
enum class StoreRequest {
    never,
    unfinished,  // of a leased claim, until it is finished
    always,      // as long as the answer
};

// Who says which tenant a call is for.
enum class TenantFrom {
    argument,  // the caller, by the argument or the setting idem.tenant
    role,      // the server: it is the caller's role
};

struct Scope {
    char name[NAMEDATALEN];  // the hash key
    std::int32_t id;
    Oid owner;
    std::int64_t ttl;    // microseconds, as the next two
    std::int64_t lease;  // the default of idem.renew()
    std::int64_t wait;
    std::optional<std::int32_t> max_attempts;       // nothing: no limit
    std::optional<std::int32_t> claims_per_minute;  // per tenant; nothing: no limit
    WeakKeys weak_keys;
    bool request_required;
    bool tenant_required;
    bool reject_stale_keys;
    bool store_response;
    StoreRequest store_request;
    std::optional<std::int64_t> min_ttl;     // of the argument ttl; nothing: no limit
    std::optional<std::int64_t> answer_ttl;  // nothing: as long as the record
    NumberedList request_exclude;            // of new keys
    TextList request_lists;  // all lists that were that, as arrays in text form; from number 1
    PathList response_exclude;
    TextList header_exclude;
    TenantFrom tenant_from;
    std::int32_t max_answer_size;  // bytes that a record may hold
    TextList final_sqlstates;      // codes and classes that execute() stores as failures
    bool records;  // in the tables that transactions choose, and never in idem.record
};
static_assert(std::is_trivially_copyable_v<Scope> && std::is_trivially_destructible_v<Scope>);

// Nothing unless the text is allow, warn or reject.
std::optional<WeakKeys> weak_keys_of(std::string_view text);

// Nothing unless the text is never, unfinished or always.
std::optional<StoreRequest> store_request_of(std::string_view text);

// Nothing unless the text is argument or role.
std::optional<TenantFrom> tenant_from_of(std::string_view text);

// NULL when there is no such scope.
const Scope* find_scope(std::string_view name);

// The same for a caller that has only a record, or the token of one. NULL: the scope was dropped.
const Scope* find_scope_by_id(std::int32_t id);

// Whether the scope's records are elsewhere now, if a scope has changed since the last call of the
// functions above. Nothing if none has, or if the scope was dropped. What those functions have
// returned stays valid. Raises 40001 if the tenant of a call comes from elsewhere now: the caller
// has locked the table of a key that its retries would not find.
std::optional<bool> records_after_change(std::int32_t id);

// The most similar name of a scope that the current user may use; NULL if none is similar.
const char* nearest_scope(std::string_view name);

// The members that do not count when a request is compared with this fingerprint: those of the list
// that it was made with, in the current memory context. An own look at the table finds a list that
// is younger than the cache. Raises XX001 if the scope has no such list.
PathList request_list(const Scope& scope, const bytea* fingerprint);

// Finds the scope and checks that the current user has the privileges of its owner. Raises ID008 or
// 42501; function is the called function's name for the message. Only superusers may use a scope
// whose owner was dropped.
const Scope& usable_scope(std::optional<std::string_view> name, const char* function);

// Whether the current user has the privileges of pg_monitor.
bool is_monitor();

// Whether the current user may see the settings and figures of a scope, though none of its keys: a
// user of the scope, or a member of pg_monitor.
bool may_observe(Oid owner);

void init_scopes();

// --- The table idem.scope -----------------------------------------------------------------------

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
    column_final_sqlstates,
    column_store_request,
    column_answer_ttl,
    column_min_ttl,
    column_header_exclude,
    column_tenant_from,
    column_max_answer_size,
    column_records,
    column_request_lists,
    columns
};

// Nothing when the value is NULL.
inline std::optional<Datum> column(TupleTableSlot* slot, int which) {
    bool null;
    const Datum value = slot_getattr(slot, which + 1, &null);
    return null ? std::nullopt : std::optional(value);
}

// The TTL in microseconds; 0 if a superuser has stored one that no function accepts.
std::int64_t ttl(TupleTableSlot* slot);

// The setting answer_ttl in microseconds.
std::optional<std::int64_t> answer_ttl(TupleTableSlot* slot);

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

// Calls use(slot) for the first committed row that matches. False when there is none.
template <class Match, class Use>
bool scan_for(Match match, Use use) {
    bool found = false;
    scan_committed(Table::scope, [&](TupleTableSlot* slot) {
        found = match(slot);
        if (found) use(slot);
        return !found;
    });
    return found;
}

}  // namespace scope_row

// --- Changes ------------------------------------------------------------------------------------

// Stands for "no limit" where NULL means "unchanged".
inline constexpr int no_limit = -1;

// The settings of create_scope() and alter_scope(), checked. One that is NULL or empty is left as
// it is.
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
    ArrayType* final_sqlstates;
    std::optional<std::string_view> store_request;
    const Interval* answer_ttl;  // zero: removes the limit, as no_limit does
    const Interval* min_ttl;     // likewise
    ArrayType* header_exclude;
    std::optional<std::string_view> tenant_from;
    std::optional<std::int32_t> max_answer_size;
    std::optional<bool> records;
    std::optional<Oid> owner;
    ArrayType* request_lists;  // of an imported scope only
};

// The call of idem.create_scope() that makes the scope: "SELECT idem.create_scope(...);" with its
// owner and the settings that differ from the defaults of the installed function. The caller has
// looked the scope up.
const char* scope_definition(std::int32_t id);

// Waits for other transactions that change scopes. A scope that was looked up before may be
// outdated afterwards.
void lock_scopes();

// What happens when the name is taken.
enum class NameTaken {
    refused,        // 42710
    kept_if_equal,  // 42710 unless the scope has exactly these rules
};

// Waits as lock_scopes() does. Returns false when the scope exists already, with these rules.
bool insert_scope(std::string_view name, const ScopeRules& rules, NameTaken taken);

// Call both after lock_scopes(), with the id of a scope that was looked up since.
void update_scope(std::int32_t id, const ScopeRules& rules);
void delete_scope(std::int32_t id);

// --- Scopes that come from another server --------------------------------------------------------

// The scopes as a JSON array of objects, by id, each with the columns of the table as members.
void append_scopes(StringInfo json);

// Such an object as a row of the table. Raises 22023 unless its members are the columns, each of
// its type, and 42704 when there is no role of the owner's name. The settings are not checked.
HeapTupleHeader read_scope_object(Jsonb* object);

// Call these after lock_scopes(). The first raises 42710 if the settings of the scope differ. The
// second adds a scope with this id, which no scope has. The third deletes a scope and, unlike
// delete_scope(), does not note its id.
void require_same_rules(std::int32_t id, const ScopeRules& rules);
void place_scope(std::int32_t id, std::string_view name, const ScopeRules& rules);
void remove_scope(std::int32_t id);

}  // namespace idem::pg
