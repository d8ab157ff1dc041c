// Which claims hold their keys, in all backends and in prepared transactions.
//
// Other sessions do not see what a transaction claims and finishes until it commits, yet it keeps
// the key until then. So each backend notes one claim in a slot of its own in shared memory, when
// the library is preloaded: its newest open atomic claim, or else the newest that waits for the
// commit. Only the owner writes its slot: it makes the change count odd, writes, and makes the
// count even again. Readers copy the slot, and copy it again when the count was odd or has changed.
// There is no lock; a note costs a copy of its bytes.
//
// A note names the virtual transaction that it belongs to, and counts only while that runs. So
// nothing remains of a transaction that has ended or of a backend that has gone, however it ended.
//
// A prepared transaction has no backend that could note its claims, and outlives the server. Its
// rows are in the table, not committed, and a dirty scan of the whole table finds them. A claim
// that it released has no row; only its lock shows.
#pragma once

#include "core/key.hpp"
#include "pg/server.hpp"

namespace idem::pg {

enum class HeldAs : std::uint8_t {
    open,         // an atomic claim that is not finished
    uncommitted,  // finished, or leased: only the commit is missing
};

struct HeldClaim {
    VirtualTransactionId transaction;  // not valid: no claim is noted
    Oid database;
    std::int32_t scope_id;
    std::int32_t attempt;
    TimestampTz since;
    std::int32_t keys;  // the number of key locks of the transaction
    HeldAs as;
    std::uint8_t tenant_size;
    std::uint8_t key_size;
    char tenant_bytes[core::max_tenant_bytes];
    char key_bytes[core::max_key_bytes];

    std::string_view tenant() const { return {tenant_bytes, tenant_size}; }
    std::string_view key() const { return {key_bytes, key_size}; }
};
static_assert(core::max_tenant_bytes <= UINT8_MAX && core::max_key_bytes <= UINT8_MAX);

// False on a server that has not preloaded the library: no claim is noted or read.
bool census_available();

// Notes the claim that this transaction shows, and the number of keys that it holds in all.
void note_claim(std::int32_t scope_id, std::string_view tenant, std::string_view key,
                std::int32_t attempt, TimestampTz since, HeldAs as, std::int32_t keys);
// Updates both for the same claim.
void note_progress(HeldAs as, std::int32_t keys);
void note_no_claim();

// Backends are numbered from 0.
int backends_in_census();

// Reads the claim that a backend has noted. Returns its process id; 0 when it has no claim in this
// database.
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

// Calls visit(claim) for each claim of a prepared transaction; its views live as long as that call.
// Finds nothing on a standby, which cannot tell a prepared transaction from a running one.
void visit_prepared_claims(void (*visit)(const PreparedClaim& claim, void* data), void* data);

// The prepared transaction that holds a lock under this virtual transaction id. Not valid when
// there is none, or when there may be more than one.
TransactionId prepared_transaction(const VirtualTransactionId& vxid);

}  // namespace idem::pg
