#include "pg/store/scope.hpp"

#include "core/key.hpp"
#include "pg/server/hash_table.hpp"
#include "pg/store/version.hpp"

extern "C" {
#include "utils/varlena.h"
}

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
constinit const Scope* latest = nullptr;  // what the last lookup found: most sessions use one scope
constinit MemoryContext kept_context = nullptr;  // until the transaction ends, if it is outdated
constinit bool valid = false;  // set before anything is read: a change meanwhile resets it

// An outdated cache is freed only here, at the start of a lookup: an invalidation may arrive while
// a scope is in use. One that triggers have fired upon may be in use by the call that has fired
// them. Accepting invalidations makes a change effective at once, even in the middle
// of a transaction.
void prepare_cache() {
    AcceptInvalidationMessages();
    if (valid) return;
    // Forget the tables first: if memory runs out below, the context must not be deleted twice.
    by_name = {};
    by_id = {};
    latest = nullptr;
    MemoryContext context = std::exchange(cache_context, nullptr);
    if (context != nullptr && context == std::exchange(kept_context, nullptr))
        MemoryContextSetParent(context, TopTransactionContext);
    else if (context != nullptr)
        MemoryContextDelete(context);
    cache_context = AllocSetContextCreate(CacheMemoryContext, "idem scopes", ALLOCSET_SMALL_SIZES);
    by_name.create("idem scopes", 16, cache_context);
    by_id.create("idem scopes by id", 16, cache_context);
    valid = true;
}

// A constraint of the table sees to it that the list is there.
core::ListNumber number_in(TextList lists, Datum list) {
    const std::string_view text = OidOutputFunctionCall(F_ARRAY_OUT, list);
    if (text == "{}") return 0;
    const auto found = std::ranges::find(lists, text);
    if (found == lists.end()) elog(ERROR, "unexpected request_exclude in table idem.scope");
    return static_cast<core::ListNumber>(found - lists.begin()) + 1;
}

// Without its name if a restore into another encoding has made that longer than a call may pass:
// cut off, it could be the name of another scope.
Scope read_scope(TupleTableSlot* slot) {
    Scope scope{};
    const std::string_view name = name_of(slot);
    static_assert(core::max_scope_bytes < NAMEDATALEN);
    if (name.size() <= core::max_scope_bytes) std::ranges::copy(name, scope.name);
    scope.id = id_of(slot);
    scope.owner = DatumGetObjectId(*column(slot, column_owner));
    read_value(scope.request_lists, *column(slot, column_request_lists));
    for (std::size_t i = 0; i < settings.size(); ++i)
        if (const auto value = column(slot, column_of(i))) settings[i].read(scope, *value);
    scope.request_exclude.number =
        number_in(scope.request_lists, *column(slot, column_of("request_exclude")));
    return scope;
}

// The row is read before it is entered: an error in between must not leave half an entry.
template <class Name>
const Scope* read_into_cache(Name name) {
    Scope scope;
    const bool exists = with_row(name, [&](TupleTableSlot* slot) {
        const MemoryContext before = MemoryContextSwitchTo(cache_context);
        scope = read_scope(slot);
        MemoryContextSwitchTo(before);
    });
    if (!exists) return nullptr;
    bool found;
    const bool is_named = scope.name[0] != '\0';
    Scope* entry = is_named ? by_name.enter(scope.name, found)
                            : static_cast<Scope*>(MemoryContextAlloc(cache_context, sizeof(Scope)));
    *entry = scope;
    by_id.enter(scope.id, found)->scope = entry;
    return entry;
}

// Functions that would have started an operation in the scope if it existed.
report::Creatable begins_something(std::string_view function) {
    constexpr std::array<std::string_view, 6> functions = {"claim", "try_claim", "execute",
                                                           "once",  "once_each", "advance"};
    return report::Creatable{std::ranges::find(functions, function) != functions.end()};
}

// Membership in a superuser, or in the owner of the tables of records and secrets, is more than the
// use of a scope: the scope is given away, and not to a role only because it asks.
char* membership_hint(const char* scope, Oid owner, const char* owner_name) {
    if (owner_name == nullptr ||
        compat::object_ownercheck(RelationRelationId, table_oid(Table::record), owner))
        return psprintf(
            "Ask a superuser to give the scope to a role of its users: SELECT "
            "idem.alter_scope(%s, owner => 'ROLE').",
            quote_literal_cstr(scope));
    const char* role = pstrdup(quote_identifier(owner_name));
    if (compat::member_can_set_role(GetUserId(), owner))
        return psprintf("Run SET ROLE %s first.", role);
    return psprintf("Ask an administrator of the role to run GRANT %s TO %s.", role,
                    quote_identifier(GetUserNameFromId(GetUserId(), false)));
}

// Scopes and their owners are no secret, as tables and theirs are none.
[[noreturn]] void refuse_membership(std::string_view scope, Oid owner, const char* function) {
    const char* name = report::c_string(scope);
    const char* owner_name = GetUserNameFromId(owner, true);
    ereport(ERROR,
            (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
             errmsg("permission denied for scope \"%s\"", name),
             owner_name != nullptr
                 ? errdetail("The scope belongs to role \"%s\", whose privileges idem.%s() needs.",
                             owner_name, function)
                 : errdetail("The role that owned the scope was dropped."),
             errhint("%s", membership_hint(name, owner, owner_name))));
}

}  // namespace

void forget_scopes() {
    valid = false;
    forget_version();
}

void keep_scopes() {
    kept_context = cache_context;
}

const Scope* find_scope(std::string_view name) {
    if (name.empty() || name.size() > core::max_scope_bytes) return nullptr;
    prepare_cache();
    if (latest != nullptr && name == latest->name) return latest;
    char key[NAMEDATALEN] = {};
    std::copy(name.begin(), name.end(), key);
    const Scope* hit = by_name.find(key);
    return latest = hit != nullptr ? hit : read_into_cache(name);
}

const Scope* find_scope_by_id(std::int32_t id) {
    prepare_cache();
    if (latest != nullptr && latest->id == id) return latest;
    const ById* hit = by_id.find(id);
    return latest = hit != nullptr ? hit->scope : read_into_cache(id);
}

std::optional<bool> records_after_change(std::int32_t id) {
    AcceptInvalidationMessages();
    if (valid) return std::nullopt;
    std::optional<bool> records;
    const ById* before = by_id.find(id);
    with_row(id, [&](TupleTableSlot* slot) {
        records = DatumGetBool(*column(slot, column_of("records")));
        TenantFrom tenant_from;
        read_value(tenant_from, *column(slot, column_of("tenant_from")));
        if (before != nullptr && before->scope->tenant_from != tenant_from)
            report::serialization_failure("The scope's \"tenant_from\" was changed meanwhile.");
    });
    return records;
}

PathList request_list(const Scope& scope, const bytea* fingerprint) {
    const core::ListNumber number =
        fingerprint == nullptr ? 0 : core::list_number(core::as_bytes(view_of(fingerprint)));
    if (number == scope.request_exclude.number) return scope.request_exclude.paths;
    if (number == 0) return {};
    TextList lists = scope.request_lists;
    if (number > lists.size())
        with_row(scope.id, [&lists](TupleTableSlot* slot) {
            read_value(lists, *column(slot, column_request_lists));
        });
    if (number > lists.size())
        ereport(
            ERROR,
            (errcode(ERRCODE_DATA_CORRUPTED),
             errmsg("scope \"%s\" has no list %u of excluded members", scope.name, number),
             errdetail("The record was made with a list of \"request_exclude\" that is not among "
                       "the \"request_lists\" of the scope's row in idem.scope."),
             errhint("Restore or replicate idem.scope together with the records, or import the "
                     "identity of the server that has made them.")));
    char* list = report::c_string(lists[number - 1]);  // an array as text
    return read_paths(DatumGetArrayTypeP(value_of_text(TEXTARRAYOID, list)));
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
        const std::string_view other = name_of(slot);
        const int distance =
            varstr_levenshtein_less_equal(name.data(), static_cast<int>(name.size()), other.data(),
                                          static_cast<int>(other.size()), 1, 1, 1, best, true);
        const bool closer = distance < best || (distance == best && nearest && other < nearest);
        if (closer &&
            has_privs_of_role(GetUserId(), DatumGetObjectId(*column(slot, column_owner)))) {
            best = distance;
            nearest = report::c_string(other);
        }
    };
    scan_committed(Table::scope, consider);
    return nearest;
}

const Scope& usable_scope(std::optional<std::string_view> name, const char* function) {
    if (!name)
        ereport(ERROR, (report::own_error("unknown_scope"), errmsg("scope must not be null"),
                        errdetail("The name of the scope is null."),
                        errhint("Pass the name of a scope. idem.scopes lists the scopes that you "
                                "may use.")));
    const Scope* scope = find_scope(*name);
    if (scope == nullptr)
        report::unknown_scope(*name, nearest_scope(*name), nullptr, begins_something(function));
    if (!has_privs_of_role(GetUserId(), scope->owner))
        refuse_membership(*name, scope->owner, function);
    return *scope;
}

}  // namespace idem::pg
