// The keys that this transaction has claimed, or holds by the token of a leased claim.
//
// This map, not the lock, says which claims are open: it follows savepoints exactly. A claim made
// in a subtransaction that rolls back is dropped, and one finished there is open again; a
// subtransaction that commits passes its claims to its parent. Everything is allocated in
// TopTransactionContext and forgotten with the transaction. An atomic claim that is still open when
// the transaction commits or is prepared raises ID006; a leased claim lives on in its row. A
// transaction that claimed, renewed or checkpointed under a lease commits durably whatever
// synchronous_commit says: the effects outside the database that follow it must not be forgotten.
//
// Backend-local; no locking. pg/shared/held_claims shows other backends which claim holds a key.
#pragma once

#include "core/token.hpp"
#include "pg/store/record.hpp"

namespace idem::pg {

enum class Phase : std::uint8_t { open, completed, failed, released };

struct Claim : Key {
    Claim() = default;
    Claim(const Key& name, std::string_view scope, const core::Token& by)
        : Key(name), token(by), scope_name(scope) {}

    core::Token token{};
    Phase phase = Phase::open;
    SubTransactionId claimed_in = InvalidSubTransactionId;
    SubTransactionId closed_in = InvalidSubTransactionId;  // where it was finished or released
    std::string_view scope_name;
    bytea* fingerprint = nullptr;  // NULL when the request was NULL
    Jsonb* request = nullptr;      // of an atomic claim, if the scope keeps it with the record
    TimestampTz created = 0;
    std::int64_t ttl = 0;    // microseconds
    bool replaces = false;   // an atomic claim: a row was found under the key
    bool unlocked = false;   // stands for keys that were finished without a lock; has no token
    bool of_source = false;  // the source of a stream, not a key; locked in the same way

    Claim* older = nullptr;      // the claim made before this one
    Claim* in_bucket = nullptr;  // the next in the same hash bucket
};

// The newest claim of this key in this transaction, in any phase; NULL if there is none.
Claim* find_claim(const core::Digest& digest);

// The claim of this transaction that the token of an atomic claim names, in any phase. Raises ID005
// if there is none; open_claim() also if it is not open.
Claim& claim_of_token(const core::Token& token);
Claim& open_claim(const core::Token& token);

// Raises ID005 for a claim that is finished or released.
[[noreturn]] void refuse_closed(Phase phase);

// The newest open claim, of any scope or of this one; NULL if there is none.
const Claim* newest_open_claim(std::optional<std::int32_t> scope_id = std::nullopt);

// Adds an open claim. Copies everything that it points to.
Claim& remember_claim(const Claim& claim);

void close_claim(Claim& claim, Phase phase);

// Notes that this transaction has finished keys of the scope without claiming each.
void remember_unlocked(std::string_view scope_name);

// Whether this transaction has claimed a key in the scope and not released it: the claim is open,
// completed or failed.
bool has_claimed_in(std::string_view scope);

// The number of key locks that the transaction's claims hold.
int claims_held();

// Makes the commit of this transaction wait for its WAL as with synchronous_commit = on.
void commit_durably();

// Registers the function that is called before an atomic claim is remembered while none is open.
void on_open_claim(void (*prepare)());

// The end of a transaction and of its subtransactions. prepare_commit() raises ID006 if an atomic
// claim is open. When a subtransaction rolls back, what it claimed is gone, and what it finished is
// open again.
void prepare_commit(bool preparing);
void forget_claims();
void undo_claims(SubTransactionId sub);
void hand_over_claims(SubTransactionId sub, SubTransactionId parent);

void init_test_seam();

}  // namespace idem::pg
