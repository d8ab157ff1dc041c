// The database's secrets, cached per backend, and random bits.
//
// The secrets are a permanent seed and the fingerprint secrets. create_secrets() makes them
// together with the first scope, under a lock on their table, and a dump includes them. The cache
// is dropped by relation cache invalidation, which also covers the rollback of the transaction that
// made them. The fingerprint secret can be rotated; old ones are kept for the fingerprints that
// were made with them.
//
// Random bits for tokens and keys come from OpenSSL, whose every call costs system calls whatever
// the size. So they are drawn in stock, 64 words at a time. A word is used once and wiped.
//
// Backend-local, but for the lock on the table.
#pragma once

#include "core/digest.hpp"
#include "core/fingerprint.hpp"
#include "core/token.hpp"
#include "pg/server/lock.hpp"
#include "pg/server/postgres.hpp"

namespace idem::pg {

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

// Makes the secrets if there are none.
void create_secrets();

// Adds a secret for new fingerprints and returns its id.
std::int32_t rotate_fingerprint_secret();

void init_secrets();

std::uint64_t random_bits();

// The lock of the key or source with this digest.
KeyLock key_lock(const core::Digest& digest);

// The token as its holder sees it. The digest of a leased claim is sealed; that of an atomic one is
// only compared with this transaction's own claims, and needs no seal.
core::TokenText token_text(const core::Token& token);

// The reverse. Raises ID005 when the text is NULL or not a token.
core::Token read_token(std::optional<std::string_view> text);

}  // namespace idem::pg
