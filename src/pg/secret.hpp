// The per-database secrets: a permanent seed and the fingerprint secrets, cached per backend.
//
// They are made together with the first scope, by create_secrets() under a lock on their table, and
// dumped with the data. The cache is dropped through relation cache invalidation, which also covers
// the rollback of the transaction that made them; changes past these functions are announced by a
// trigger (api/announce_change). The fingerprint secret may be rotated; old ones
// are kept, because the fingerprints that were made with them are still compared under them.
#pragma once

#include "core/digest.hpp"
#include "core/fingerprint.hpp"
#include "pg/server.hpp"

namespace idem::pg {

struct Secrets {
    core::Secret seed;             // permanent; child keys are made with all of it
    core::LockSeed lock_seed;      // one half of it
    core::SealKey seal_key;        // the other
    std::uint32_t fingerprint_id;  // of the secret that new fingerprints are made with
    core::Secret fingerprint;
};

// Valid until the next call. Raises 55000 when the database has none (somebody deleted them).
const Secrets& secrets();

// The fingerprint secret of this id; raises XX001 when there is none.
core::Secret fingerprint_secret(std::uint32_t id);

// Makes the secrets if there are none. Locks their table until the transaction ends.
void create_secrets();

// Adds a secret for the fingerprints to come, and returns its id. Locks as create_secrets().
std::int32_t rotate_fingerprint_secret();

void init_secrets();

}  // namespace idem::pg
