// All records of one tenant, for the functions that forget or erase a tenant.
//
// They lock all record tables, so that no record is moved from one to another meanwhile, and read
// them, because there is no index on the tenant. Then they change one record after the other as for
// a single key, in the order of the digests: of two such calls, the second waits for the first. A
// claim in flight has no record yet and is not found. A table that cannot be read, or must not be
// written, is left out with a WARNING.
#pragma once

#include "pg/record.hpp"
#include "pg/scope.hpp"
#include "pg/server.hpp"

namespace idem::api {

struct TenantCall {
    const pg::Scope* scope;   // NULL: all scopes
    std::string_view tenant;  // empty: the keys without a tenant
    bool force;
};

// What the call does to the rows.
enum class Rows : bool { deleted, rewritten };

// Everything is for superusers: then the scope may be NULL, for all of them.
TenantCall read_tenant_call(FunctionCallInfo fcinfo, const char* function, Rows rows);

// The places of the tenant's records. A NOTICE says that there are none.
std::span<const pg::RecordPlace> places_of(const TenantCall& call, Rows rows);

// Calls change(name) for the key of each record. Returns how many calls have returned true.
template <class Change>
std::int64_t change_each_record(const TenantCall& call, Rows rows, Change change) {
    pg::trivial<Change>();
    std::int64_t changed = 0;
    const MemoryContext memory =
        AllocSetContextCreate(CurrentMemoryContext, "idem key", ALLOCSET_DEFAULT_SIZES);
    for (const pg::RecordPlace& place : places_of(call, rows)) {
        CHECK_FOR_INTERRUPTS();
        MemoryContextReset(memory);
        const MemoryContext before = MemoryContextSwitchTo(memory);
        const pg::Records records = pg::Records::to_read(place.table);
        const auto name = pg::name_behind(records, place.digest);
        records.close();
        if (name && change(*name)) ++changed;
        MemoryContextSwitchTo(before);
    }
    MemoryContextDelete(memory);
    return changed;
}

}  // namespace idem::api
