// The database's secrets, cached per backend.
//
// The secrets are a permanent seed and the fingerprint secrets. create_secrets() makes them
// together with the first scope, under a lock on their table, and a dump includes them. The cache
// is dropped by relation cache invalidation, which also covers the rollback of the transaction that
// made them. The fingerprint secret can be rotated; old ones are kept for the fingerprints that
// were made with them.
//
// Backend-local, but for the lock on the table.
#pragma once

#include "core/digest.hpp"
#include "pg/server/postgres.hpp"

namespace idem::pg {

inline constexpr int secret_columns = 4;

struct Secrets {
    core::Secret seed;             // permanent; child keys are made with all of it
    core::LockSeed lock_seed;      // its first half
    core::SealKey seal_key;        // its second half
    std::uint32_t fingerprint_id;  // of the secret that new fingerprints are made with
    core::Secret fingerprint;
};

// Valid until the next call. Raises 55000 when the database has no secrets (they were deleted).
const Secrets& secrets();

// The fingerprint secret with this id. Raises XX001 when there is none.
core::Secret fingerprint_secret(std::uint32_t id);

// The functions that change secrets lock their table until the transaction ends.

void create_secrets();

std::int32_t rotate_fingerprint_secret();

void forget_secrets();

}  // namespace idem::pg
