// Which claims hold their keys, in all backends: shown to other sessions, when preloaded.
//
// What a transaction claims and finishes is seen by nobody before it commits, and keeps the key
// until then, so each backend notes one claim in a slot of its own in shared memory: its newest
// open atomic claim, or else the newest that waits for the commit. Only the owner writes its slot:
// it makes the change count odd, writes, and makes it even again. Readers copy, and copy again when
// the count was odd or has changed. No lock; a note costs its bytes.
//
// A note bears the virtual transaction that it belongs to, and counts only while that runs: nothing
// is left of a transaction that has ended, or of a backend that is gone, however that came.
//
// What prepared transactions hold: the keys behind the rows that they have written.
//
// A prepared transaction has no backend that could note its claims, and outlives the server; but
// its rows are there, in progress, and a dirty scan of the whole table finds them. A claim that it
// released has no row, and only its lock shows.
#pragma once

#include "core/key.hpp"
#include "pg/server.hpp"

namespace idem::pg {

enum class HeldAs : std::uint8_t {
    open,         // an atomic claim that is not finished
    uncommitted,  // finished, or leased: all that is missing is the commit
};

struct HeldClaim {
    VirtualTransactionId transaction;  // not valid: none is noted
    Oid database;
    std::int32_t scope_id;
    std::int32_t attempt;
    TimestampTz since;
    std::int32_t keys;  // how many key locks the transaction has
    HeldAs as;
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

// The claim that this transaction is to be seen with, and how many keys it holds in all.
void note_claim(std::int32_t scope_id, std::string_view tenant, std::string_view key,
                std::int32_t attempt, TimestampTz since, HeldAs as, std::int32_t keys);
// What has become of both.
void note_progress(HeldAs as, std::int32_t keys);
void note_no_claim();

// Backends are numbered from 0.
int backends_in_census();

// The process whose claim in this database it is; 0 when that backend has none.
int read_held_claim(int backend, HeldClaim& claim);

Size census_size();
void attach_census(void* memory, LWLockPadded* locks, bool found);

struct PreparedClaim {
    TransactionId transaction;
    TimestampTz created;
    std::int32_t scope_id;
    std::int32_t attempt;
    std::string_view tenant;
    std::string_view key;
};
static_assert(std::is_trivially_copyable_v<PreparedClaim>);

// Hands each to visit, with the caller's data; the views live as long as that call. Nothing on a
// standby, which cannot tell a prepared transaction from a running one.
void visit_prepared_claims(void (*visit)(const PreparedClaim& claim, void* data), void* data);

// The prepared transaction that holds a lock under this virtual transaction id; invalid: none does,
// or more than one may.
TransactionId prepared_transaction(const VirtualTransactionId& vxid);

}  // namespace idem::pg
