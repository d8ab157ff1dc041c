// What this transaction has claimed.
//
// The map, not the lock, says what is open: it follows savepoints exactly. A claim made in a rolled
// back subtransaction is dropped, one finished there is open again; a subtransaction that commits
// hands its claims to its parent. Everything lives in TopTransactionContext and is forgotten with
// the transaction. A claim still open when the transaction is about to commit or to be prepared
// raises ID006.
//
// Backend-local; no locking.
#pragma once

#include "core/token.hpp"
#include "pg/server.hpp"

namespace idem::pg {

enum class Phase : std::uint8_t { open, finished, released };

struct Claim {
    core::Token token;
    Phase phase;
    SubTransactionId claimed_in;
    SubTransactionId closed_in;  // where it was finished or released
    bool replaces_expired;       // an expired row stood under this key when it was claimed
    std::int32_t scope_id;
    std::string_view scope_name;
    std::string_view tenant;
    std::string_view key;
    bytea* fingerprint;  // NULL when the request was NULL
    TimestampTz created;
    std::int64_t ttl;  // microseconds

    Claim* older;      // the claim made before this one
    Claim* in_bucket;  // the next in the same hash bucket
};

// The newest claim of this key in this transaction, whatever its phase; NULL if there is none.
Claim* find_claim(const core::Digest& digest);

// The claim that the token text names. Raises ID005 when it is no token, or names no open claim.
Claim& open_claim(std::optional<std::string_view> token);

// Keeps a copy of everything the claim points to.
Claim& remember_claim(const Claim& claim);

void close_claim(Claim& claim, Phase phase);

// How many key locks the transaction's claims hold.
int claims_held();

void init_claims();

}  // namespace idem::pg
