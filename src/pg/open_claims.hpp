// What this transaction has claimed, or has taken up by the token of a leased claim.
//
// The map, not the lock, says what is open: it follows savepoints exactly. A claim made in a rolled
// back subtransaction is dropped, one finished there is open again; a subtransaction that commits
// hands its claims to its parent. Everything lives in TopTransactionContext and is forgotten with
// the transaction. An atomic claim still open when the transaction is about to commit or to be
// prepared raises ID006; a leased one lives on in its row. A transaction that claimed, renewed or
// checkpointed under a lease commits durably, whatever synchronous_commit says: what follows it
// outside the database must not be forgotten.
//
// Backend-local; no locking. What holds a key is noted in pg/census for others to see.
#pragma once

#include "core/token.hpp"
#include "pg/record.hpp"
#include "pg/server.hpp"

namespace idem::pg {

enum class Phase : std::uint8_t { open, finished, released };

struct Claim {
    core::Token token;
    Phase phase;
    SubTransactionId claimed_in;
    SubTransactionId closed_in;  // where it was finished or released
    Over over;                   // of an atomic claim: what stood under the key
    std::int32_t scope_id;
    std::string_view scope_name;
    std::string_view tenant;
    std::string_view key;
    bytea* fingerprint;  // NULL when the request was NULL
    TimestampTz created;
    std::int64_t ttl;   // microseconds
    bool unlocked;      // stands for keys that were finished without a lock, and has no token
    bool by_statement;  // made by an expression of the client's statement, not within a function
    bool of_source;     // is a stream's source, not a key: locked in the same way

    Claim* older;      // the claim made before this one
    Claim* in_bucket;  // the next in the same hash bucket
};

// The newest claim of this key in this transaction, whatever its phase; NULL if there is none.
Claim* find_claim(const core::Digest& digest);

// The atomic claim that the token names. Raises ID005 when it names no open claim.
Claim& open_claim(const core::Token& token);

// Raises ID005 for a claim that this transaction has finished or released.
void refuse_closed(const Claim& claim);

// The open claim made last; NULL if there is none.
const Claim* newest_open_claim();

// Keeps a copy of everything the claim points to.
Claim& remember_claim(const Claim& claim);

void close_claim(Claim& claim, Phase phase);

// Notes that this transaction has finished keys of the scope without claiming each.
void remember_unlocked(std::string_view scope_name);

// Whether this transaction has claimed a key in the scope and not let go of it: the claim is open,
// or completed or failed.
bool has_claimed_in(std::string_view scope);

// How many key locks the transaction's claims hold.
int claims_held();

// Makes this transaction's commit wait for its WAL as synchronous_commit = on does.
void commit_durably();

void init_claims();

}  // namespace idem::pg
