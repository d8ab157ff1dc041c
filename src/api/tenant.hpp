// All records of one tenant, for the functions that forget or erase a tenant.
//
// They read all record tables, which have no index on the tenant, and then change one record
// after the other as for a single key, in the order of the digests: of two such calls, the second
// waits for the first. A claim in flight has no record yet and is not found.
#pragma once

#include "pg/record.hpp"
#include "pg/scope.hpp"
#include "pg/server.hpp"

namespace idem::api {

struct TenantCall {
    const pg::Scope* scope;
    std::string_view tenant;  // empty: the keys without a tenant
    bool force;
};

// function is the called function's name.
TenantCall read_tenant_call(FunctionCallInfo fcinfo, const char* function);

// Calls change(name) for the key of each record. Returns how many calls have returned true.
template <class Change>
std::int64_t change_each_record(const TenantCall& call, Change change) {
    pg::trivial<Change>();
    std::int64_t changed = 0;
    const MemoryContext memory =
        AllocSetContextCreate(CurrentMemoryContext, "idem key", ALLOCSET_DEFAULT_SIZES);
    for (const pg::RecordPlace& place : pg::records_of_tenant(call.scope->id, call.tenant)) {
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
