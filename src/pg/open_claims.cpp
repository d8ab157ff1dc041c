#include "pg/open_claims.hpp"

#include "pg/server/guc.hpp"
#include "pg/server/test_seam.hpp"
#include "pg/server/wakeup.hpp"
#include "pg/shared/held_claims.hpp"
#include "pg/store/key_lock.hpp"

namespace idem::pg {

constinit seam::Seam* test_seam = nullptr;

namespace {

// Digests are uniformly distributed, so six bits of the last byte serve as the hash. 2,000 claims
// make chains of 32 on average.
struct Claims {
    Claim* newest;
    int count;  // with a key lock
    int open;   // atomic and open
    bool durable;
    SubTransactionId latest;  // the innermost subtransaction that has changed a claim
    std::array<Claim*, 64> buckets;
};

constinit Claims* claims = nullptr;  // in TopTransactionContext; NULL before the first claim

using Prepare = void();
constinit Prepare* prepare_to_claim = nullptr;

Claim*& chain_of(const core::Digest& digest) {
    return claims->buckets[std::to_integer<std::size_t>(digest.back()) % claims->buckets.size()];
}

void unlink(Claim* claim) {
    if (claim->unlocked) return;
    Claim** link = &chain_of(claim->token.digest);
    while (*link != claim) {
        Assert(*link != nullptr);  // every claim with a lock is in its bucket
        link = &(*link)->in_bucket;
    }
    *link = claim->in_bucket;
    --claims->count;
    Assert(claims->count >= 0);
}

bool is_open_atomic(const Claim& claim) {
    return claim.phase == Phase::open && claim.token.kind == core::TokenKind::atomic &&
           !claim.of_source;
}

// The newest claim for which the condition holds; NULL if there is none.
template <class Condition>
Claim* newest_where(Condition holds) {
    Claim* claim = claims == nullptr ? nullptr : claims->newest;
    while (claim != nullptr && !holds(*claim)) claim = claim->older;
    return claim;
}

// The claim that other backends are to see: the newest open atomic claim, or else the newest claim
// that has a key lock.
const Claim* claim_to_show() {
    if (claims->open > 0) return newest_where(is_open_atomic);
    return newest_where([](const Claim& claim) { return !claim.unlocked && !claim.of_source; });
}

// Updates this backend's slot of held claims.
void show() {
    if (!guc::preloaded) return;
    Assert(claims->open >= 0 && claims->count >= claims->open);
    const Claim* claim = claim_to_show();
    if (claim == nullptr) return publish_no_claim();
    publish_claim({.scope_id = claim->scope_id,
                   .attempt = static_cast<std::int32_t>(claim->token.attempt),
                   .since = claim->created,
                   .tenant = claim->tenant,
                   .key = claim->key,
                   .as = is_open_atomic(*claim) ? HeldAs::open : HeldAs::uncommitted,
                   .keys = claims->count});
}

void refuse_open_claims(bool preparing) {
    const Claim* claim = newest_where(is_open_atomic);
    if (claim == nullptr) return;
    ereport(ERROR,
            (report::own_error("claim_incomplete"),
             preparing ? errmsg("cannot prepare a transaction with an open claim")
                       : errmsg("cannot commit a transaction with an open claim"),
             errdetail("Key \"%s\" in scope \"%s\" was claimed, but not completed, failed or "
                       "released.",
                       report::c_string(claim->key), report::c_string(claim->scope_name)),
             errhint("Call idem.complete(), idem.fail() or idem.release() with the claim's token "
                     "before the transaction ends.%s",
                     IsTransactionBlock() ? ""
                                          : " Outside a transaction block, each statement is a "
                                            "transaction of its own: start one with BEGIN.")));
}

void make_map() {
    if (claims != nullptr) return;
    claims = static_cast<Claims*>(MemoryContextAllocZero(TopTransactionContext, sizeof(Claims)));
}

// A copy of the claim, with everything that it points to behind it.
Claim* copy_of(const Claim& from) {
    const auto size_of = [](const void* value) {
        return value == nullptr ? 0 : INTALIGN(VARSIZE_ANY(value));
    };
    const Size names = from.scope_name.size() + from.tenant.size() + from.key.size();
    const Size size = sizeof(Claim) + size_of(from.request) + size_of(from.fingerprint) + names;
    void* memory = MemoryContextAllocExtended(TopTransactionContext, size, MCXT_ALLOC_HUGE);
    auto* claim = new (memory) Claim(from);
    auto* at = reinterpret_cast<char*>(claim + 1);
    const auto copy = [&at, size_of](auto*& value) {  // first, because they must be aligned
        if (value == nullptr) return;
        const void* original = std::exchange(value, reinterpret_cast<decltype(+value)>(at));
        memcpy(at, original, VARSIZE_ANY(original));
        at += size_of(original);
    };
    copy(claim->request);
    copy(claim->fingerprint);
    for (std::string_view* name : {&claim->scope_name, &claim->tenant, &claim->key}) {
        char* end = std::copy(name->begin(), name->end(), at);
        *name = {at, name->size()};
        at = end;
    }
    return claim;
}

}  // namespace

void init_test_seam() {
    test_seam = seam::find();
    test_seam->announced_waits = announced_waits;
    test_seam->newest_claim = []() -> const Claim* {
        return claims == nullptr ? nullptr : claims->newest;
    };
}

void on_open_claim(void (*prepare)()) {
    prepare_to_claim = prepare;
}

Claim* find_claim(const core::Digest& digest) {
    if (claims == nullptr) return nullptr;
    Claim* claim = chain_of(digest);
    while (claim != nullptr && claim->token.digest != digest) claim = claim->in_bucket;
    return claim;
}

void refuse_closed(Phase phase) {
    Assert(phase != Phase::open);
    if (phase == Phase::released)
        report::not_claimed("The claim was released by this transaction.",
                            "Claim the key again to work on the operation.");
    report::not_claimed("The claim is already completed or failed.",
                        "Call idem.complete() or idem.fail() once per claim. idem.lookup() shows "
                        "what is stored.");
}

Claim& claim_of_token(const core::Token& token) {
    Claim* claim = find_claim(token.digest);
    if (claim == nullptr || claim->token != token)
        report::not_claimed(
            "The token belongs to another transaction, or to a claim that was "
            "released or rolled back.",
            "Use the token in the transaction that made the claim. For a claim "
            "that outlives its transaction, pass \"lease\" to idem.claim(). "
            "idem.lookup() shows the state of a key.");
    return *claim;
}

Claim& open_claim(const core::Token& token) {
    Claim& claim = claim_of_token(token);
    if (claim.phase != Phase::open) refuse_closed(claim.phase);
    return claim;
}

const Claim* newest_open_claim(std::optional<std::int32_t> scope_id) {
    return newest_where([scope_id](const Claim& claim) {
        return claim.phase == Phase::open && (!scope_id || claim.scope_id == *scope_id);
    });
}

Claim& remember_claim(const Claim& from) {
    make_map();
    if (is_open_atomic(from) && claims->open == 0) prepare_to_claim();
    Assert(from.unlocked || (from.token.attempt >= 1 && from.scope_id > 0));
    Assert(from.unlocked || KeyLock(from.token.digest).is_held());
    Assert(from.unlocked || find_claim(from.token.digest) == nullptr ||
           find_claim(from.token.digest)->phase != Phase::open);
    Claim* claim = copy_of(from);
    claim->claimed_in = claims->latest = GetCurrentSubTransactionId();

    claim->older = claims->newest;
    claims->newest = claim;
    if (claim->unlocked) return *claim;
    Claim*& bucket = chain_of(claim->token.digest);
    claim->in_bucket = bucket;
    bucket = claim;
    ++claims->count;
    if (is_open_atomic(*claim)) ++claims->open;
    show();
    return *claim;
}

void close_claim(Claim& claim, Phase phase) {
    Assert(claims != nullptr && claim.phase == Phase::open && phase != Phase::open);
    if (is_open_atomic(claim)) --claims->open;
    Assert(claims->open >= 0);
    claim.phase = phase;
    claim.closed_in = claims->latest = GetCurrentSubTransactionId();
    show();
    if (phase != Phase::released) (void)at_seam(seam::Event::finished);
}

// A note that exists was made in this subtransaction or in one around it, so it lasts as long as a
// new one would. A rehearsal (pg/server/test_seam) wants a note of each run.
void remember_unlocked(std::string_view scope_name) {
    const Claim* known = newest_where([scope_name](const Claim& claim) {
        return claim.unlocked && claim.scope_name == scope_name;
    });
    if (known != nullptr && !at_seam(seam::Event::noted)) return;
    Claim note{};
    note.scope_name = scope_name;
    note.unlocked = true;
    close_claim(remember_claim(note), Phase::completed);
}

void commit_durably() {
    make_map();
    claims->durable = true;
}

bool has_claimed_in(std::string_view scope) {
    return newest_where([scope](const Claim& claim) {
               return claim.phase != Phase::released && claim.scope_name == scope;
           }) != nullptr;
}

int claims_held() {
    return claims == nullptr ? 0 : claims->count;
}

void prepare_commit(bool preparing) {
    if (claims == nullptr) return;
    refuse_open_claims(preparing);
    // ForceSyncCommit() would wait for this server's disk, but not for a standby.
    if (claims->durable && synchronous_commit < SYNCHRONOUS_COMMIT_REMOTE_FLUSH)
        (void)set_config_option("synchronous_commit", "on", PGC_USERSET, PGC_S_SESSION,
                                GUC_ACTION_LOCAL, true, 0, false);
}

// TopTransactionContext frees the memory. The slot of held claims is not valid any more: it names
// this transaction.
void forget_claims() {
    claims = nullptr;
}

// The subtransactions around one that ends have lower numbers, and those inside it have ended. A
// loop with an EXCEPTION block may end any number that have changed nothing.
void undo_claims(SubTransactionId sub) {
    if (claims == nullptr || claims->latest != sub) return;
    claims->open = 0;
    claims->latest = InvalidSubTransactionId;
    for (Claim** link = &claims->newest; *link != nullptr;) {
        Claim* claim = *link;
        if (claim->claimed_in == sub) {
            *link = claim->older;
            unlink(claim);
            pfree(claim);  // at once, because a transaction may roll back any number of savepoints
            continue;
        }
        if (claim->phase != Phase::open && claim->closed_in == sub) {
            claim->phase = Phase::open;
            claim->closed_in = InvalidSubTransactionId;
        }
        claims->latest = std::max({claims->latest, claim->claimed_in, claim->closed_in});
        if (is_open_atomic(*claim)) ++claims->open;
        link = &claim->older;
    }
    show();
}

void hand_over_claims(SubTransactionId sub, SubTransactionId parent) {
    if (claims == nullptr || claims->latest != sub) return;
    claims->latest = parent;
    for (Claim* claim = claims->newest; claim != nullptr; claim = claim->older) {
        if (claim->claimed_in == sub) claim->claimed_in = parent;
        if (claim->closed_in == sub) claim->closed_in = parent;
    }
}

}  // namespace idem::pg
