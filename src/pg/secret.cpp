#include "pg/secret.hpp"

#include "pg/boundary.hpp"
#include "pg/compat.hpp"
#include "pg/report.hpp"
#include "pg/table.hpp"

namespace idem::pg {
namespace {

enum Column { column_id, column_purpose, column_secret, column_created, columns };

constexpr std::int32_t first_fingerprint_id = 1;

constinit Secrets cache{};
constinit bool cached = false;

// The older fingerprint secret that was used last: after a rotation, most retries need the same.
struct OlderSecret {
    std::uint32_t id;  // 0: none
    core::Secret secret;
};
constinit OlderSecret older{};

// Counts the invalidations. One that arrives while the table is being read may concern rows that
// were read already, so only what was read without one is cached.
constinit std::uint64_t invalidations = 0;

void forget_secrets() {
    ++invalidations;
    cached = false;
    older.id = 0;
}

// Calls visit(id, secret) for every secret.
template <class Visit>
void scan_secrets(Visit visit) {
    scan_committed(Table::secret, [&](TupleTableSlot* slot) {
        bool null;
        const std::int32_t id = DatumGetInt32(slot_getattr(slot, column_id + 1, &null));
        const bytea* bytes = DatumGetByteaPP(slot_getattr(slot, column_secret + 1, &null));
        core::Secret secret{};
        const auto* from = reinterpret_cast<const std::byte*>(VARDATA_ANY(bytes));
        std::copy_n(from, std::min<std::size_t>(VARSIZE_ANY_EXHDR(bytes), secret.size()),
                    secret.begin());
        visit(id, secret);
    });
}

// Nothing when the seed or every fingerprint secret is missing.
std::optional<Secrets> read_secrets() {
    bool have_seed = false;
    Secrets found{};
    scan_secrets([&](std::int32_t id, const core::Secret& secret) {
        if (id == seed_id) {
            have_seed = true;
            found.seed = secret;
            const auto half = secret.begin() + core::LockSeed{}.size();
            std::copy(secret.begin(), half, found.lock_seed.begin());
            std::copy(half, secret.end(), found.seal_key.begin());
        } else if (static_cast<std::uint32_t>(id) > found.fingerprint_id) {
            found.fingerprint_id = static_cast<std::uint32_t>(id);
            found.fingerprint = secret;
        }
    });
    if (!have_seed || found.fingerprint_id == 0) return std::nullopt;
    return found;
}

void insert_secret(Relation relation, const StoredSecret& stored) {
    const auto size = static_cast<int>(stored.secret.size());
    Row<columns> row;
    row.set_int(column_id, stored.id);
    row.set_text(column_purpose, stored.id == seed_id ? "seed" : "fingerprint");
    row.set_pointer(column_secret, cstring_to_text_with_len(
                                       reinterpret_cast<const char*>(stored.secret.data()), size));
    row.set_time(column_created, GetCurrentTimestamp());
    TupleTableSlot* slot = new_row(relation, row.values(), row.nulls());
    insert_row(relation, slot);
    ExecDropSingleTupleTableSlot(slot);
}

void make_secret(Relation relation, std::int32_t id) {
    StoredSecret made{id, {}};
    if (!pg_strong_random(made.secret.data(), made.secret.size())) report::crypto_failure();
    insert_secret(relation, made);
}

void announce_change(Relation relation) {
    CacheInvalidateRelcache(relation);
    CommandCounterIncrement();
}

// Deletes the secrets whose id matches.
template <class Match>
void delete_matching(Match match) {
    Relation relation = open_table(Table::secret, ShareRowExclusiveLock);
    scan_committed(Table::secret, [&](TupleTableSlot* slot) {
        bool null;
        if (!match(DatumGetInt32(slot_getattr(slot, column_id + 1, &null)))) return;
        const TM_Result result = compat::delete_row(relation, &slot->tts_tid, compat::Waiting::yes);
        if (result != TM_Ok) elog(ERROR, "unexpected result %d of deleting a secret", result);
    });
    announce_change(relation);
    table_close(relation, NoLock);
}

constinit std::array<std::uint64_t, 64> stock{};
constinit std::size_t left = 0;

}  // namespace

void init_secrets() {
    on_invalidation(Table::secret, forget_secrets);
}

const Secrets& secrets() {
    if (cached) return cache;
    const std::uint64_t before = invalidations;
    const std::optional<Secrets> found = read_secrets();
    if (!found) report::no_secrets();
    cache = *found;
    cached = invalidations == before;
    return cache;
}

core::Secret fingerprint_secret(std::uint32_t id) {
    const Secrets& current = secrets();
    if (current.fingerprint_id == id) return current.fingerprint;
    if (id != 0 && older.id == id) return older.secret;
    const std::uint64_t before = invalidations;
    std::optional<core::Secret> found;
    scan_secrets([&](std::int32_t each, const core::Secret& secret) {
        if (static_cast<std::uint32_t>(each) == id) found = secret;
    });
    if (!found) report::fingerprint_secret_missing(id);
    if (invalidations == before) older = {id, *found};
    return *found;
}

void create_secrets() {
    Relation relation = open_table(Table::secret, ShareRowExclusiveLock);
    if (!read_secrets()) {
        make_secret(relation, seed_id);
        make_secret(relation, first_fingerprint_id);
        announce_change(relation);
    }
    table_close(relation, NoLock);
}

std::int32_t rotate_fingerprint_secret() {
    create_secrets();
    Relation relation = open_table(Table::secret, ShareRowExclusiveLock);
    std::int32_t newest = 0;
    scan_secrets([&](std::int32_t id, const core::Secret&) { newest = std::max(newest, id); });
    if (newest == INT_MAX) elog(ERROR, "fingerprint secrets have run out of ids");
    Assert(newest >= first_fingerprint_id);
    make_secret(relation, newest + 1);
    announce_change(relation);
    table_close(relation, NoLock);
    return newest + 1;
}

std::span<const StoredSecret> stored_secrets() {
    std::size_t count = 0;
    scan_secrets([&](std::int32_t, const core::Secret&) { ++count; });
    auto* found = static_cast<StoredSecret*>(palloc((count + 1) * sizeof(StoredSecret)));
    std::size_t filled = 0;
    // Others may have added secrets meanwhile, and none of those here is missed.
    scan_secrets([&](std::int32_t id, const core::Secret& secret) {
        if (filled < count) found[filled++] = {id, secret};
    });
    std::sort(found, found + filled,
              [](const StoredSecret& a, const StoredSecret& b) { return a.id < b.id; });
    return {found, filled};
}

void lock_secrets() {
    table_close(open_table(Table::secret, ShareRowExclusiveLock), NoLock);
}

void delete_secrets() {
    delete_matching([](std::int32_t) { return true; });
}

void put_secret(const StoredSecret& secret) {
    delete_matching([&](std::int32_t id) { return id == secret.id; });
    Relation relation = open_table(Table::secret, ShareRowExclusiveLock);
    insert_secret(relation, secret);
    announce_change(relation);
    table_close(relation, NoLock);
}

std::uint64_t random_bits() {
    if (left == 0) {
        if (!pg_strong_random(stock.data(), sizeof stock)) report::crypto_failure();
        left = stock.size();
    }
    Assert(left <= stock.size());
    --left;
    const std::uint64_t drawn = stock[left];
    stock[left] = 0;
    return drawn;
}

core::TokenText token_text(const core::Token& token) {
    Assert(token.attempt >= 1);
    core::Token shown = token;
    if (token.kind == core::TokenKind::leased &&
        !core::seal(secrets().seal_key, token.digest, shown.digest))
        report::crypto_failure();
    return core::encode(shown);
}

core::Token read_token(std::optional<std::string_view> text) {
    core::Token token;
    if (!text)
        report::not_claimed("The token is null.",
                            "A replay has no token. Test \"claimed\" first, and return the stored "
                            "answer if it is false.");
    if (!core::decode(*text, token))
        report::not_claimed("The text is not a token of idem.claim().",
                            "Pass the column \"token\" of the claim's result, unchanged.");
    const core::Digest sealed = token.digest;
    if (token.kind == core::TokenKind::leased &&
        !core::unseal(secrets().seal_key, sealed, token.digest))
        report::crypto_failure();
    return token;
}

}  // namespace idem::pg
