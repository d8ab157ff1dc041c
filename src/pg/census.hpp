// Which atomic claims are open, in all backends: seen by whoever asks, when preloaded.
//
// An atomic claim writes nothing before it finishes, so each backend notes its newest open one in a
// slot of its own in shared memory. Only the owner writes his slot: he makes the change count odd,
// writes, and makes it even again. Readers copy, and copy again when the count was odd or has
// changed. No lock; a note costs its bytes.
//
// A note bears the virtual transaction that it belongs to, and counts only while that runs: nothing
// is left of a backend that is gone, however it ended.
#pragma once

#include "core/key.hpp"
#include "pg/server.hpp"

namespace idem::pg {

struct OpenClaim {
    VirtualTransactionId transaction;  // not valid: none is noted
    Oid database;
    std::int32_t scope_id;
    std::int32_t attempt;
    TimestampTz since;
    std::uint8_t tenant_size;
    std::uint8_t key_size;
    char tenant_bytes[core::max_tenant_bytes];
    char key_bytes[core::max_key_bytes];

    std::string_view tenant() const { return {tenant_bytes, tenant_size}; }
    std::string_view key() const { return {key_bytes, key_size}; }
};
static_assert(core::max_tenant_bytes <= UINT8_MAX && core::max_key_bytes <= UINT8_MAX);

// False on a server that has not preloaded the library: nothing is noted or read.
bool census_available();

// What this transaction has open.
void note_open_claim(std::int32_t scope_id, std::string_view tenant, std::string_view key,
                     std::int32_t attempt, TimestampTz since);
void note_no_claim();

// Backends are numbered from 0.
int backends_in_census();

// The process whose claim in this database it is; 0 when that backend has none.
int read_open_claim(int backend, OpenClaim& claim);

Size census_size();
void attach_census(void* memory, LWLockPadded* locks, bool found);

}  // namespace idem::pg
