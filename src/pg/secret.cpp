#include "pg/secret.hpp"

#include "pg/boundary.hpp"
#include "pg/compat.hpp"
#include "pg/report.hpp"
#include "pg/table.hpp"

namespace idem::pg {
namespace {

enum Column { column_id, column_purpose, column_secret, column_created, columns };

constexpr std::int32_t first_fingerprint_id = 1;
constexpr const char* missing_hint =
    "Restore the rows of idem.secret from the dump that the records came from.";

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

core::Secret secret_of(Datum value) {
    const bytea* bytes = DatumGetByteaPP(value);
    core::Secret secret{};
    const auto* from = reinterpret_cast<const std::byte*>(VARDATA_ANY(bytes));
    std::copy_n(from, std::min<std::size_t>(VARSIZE_ANY_EXHDR(bytes), secret.size()),
                secret.begin());
    return secret;
}

StoredSecret read_row(TupleTableSlot* slot) {
    slot_getallattrs(slot);
    return {DatumGetInt32(slot->tts_values[column_id]), secret_of(slot->tts_values[column_secret]),
            DatumGetTimestampTz(slot->tts_values[column_created])};
}

// Nothing when the seed or every fingerprint secret is missing.
std::optional<Secrets> current_secrets() {
    const std::span<const StoredSecret> stored = stored_secrets();
    if (stored.size() < 2 || stored.front().id != seed_id) return std::nullopt;
    Secrets found{};
    found.seed = stored.front().secret;
    const auto half = found.seed.begin() + core::LockSeed{}.size();
    std::copy(found.seed.begin(), half, found.lock_seed.begin());
    std::copy(half, found.seed.end(), found.seal_key.begin());
    found.fingerprint_id = static_cast<std::uint32_t>(stored.back().id);
    found.fingerprint = stored.back().secret;
    return found;
}

void insert_secret(Relation relation, const StoredSecret& stored) {
    const auto size = static_cast<int>(stored.secret.size());
    Row<columns> row;
    row.set_int(column_id, stored.id);
    row.set_text(column_purpose, stored.id == seed_id ? "seed" : "fingerprint");
    row.set_pointer(column_secret, cstring_to_text_with_len(
                                       reinterpret_cast<const char*>(stored.secret.data()), size));
    row.set_time(column_created, stored.created);
    TupleTableSlot* slot = new_row(relation, row.values(), row.nulls());
    insert_row(relation, slot);
    ExecDropSingleTupleTableSlot(slot);
}

void make_secret(Relation relation, std::int32_t id) {
    StoredSecret made{id, {}, GetCurrentTimestamp()};
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
    const std::optional<Secrets> found = current_secrets();
    if (!found)
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("idem has no secrets in this database"),
                        errdetail("The secrets are created with the first scope, and a dump of the "
                                  "database contains them."),
                        errhint("%s", missing_hint)));
    cache = *found;
    cached = invalidations == before;
    return cache;
}

core::Secret fingerprint_secret(std::uint32_t id) {
    const Secrets& current = secrets();
    if (current.fingerprint_id == id) return current.fingerprint;
    if (id != 0 && older.id == id) return older.secret;
    const std::uint64_t before = invalidations;
    const auto stored = stored_secrets();
    const auto found = std::ranges::find(stored, static_cast<std::int32_t>(id), &StoredSecret::id);
    if (found == stored.end())
        ereport(ERROR,
                (errcode(ERRCODE_DATA_CORRUPTED), errmsg("fingerprint secret %u is missing", id),
                 errdetail("A record's fingerprint was computed with this secret."),
                 errhint("%s", missing_hint)));
    if (invalidations == before) older = {id, found->secret};
    return found->secret;
}

void create_secrets() {
    Relation relation = open_table(Table::secret, ShareRowExclusiveLock);
    if (!current_secrets()) {
        make_secret(relation, seed_id);
        make_secret(relation, first_fingerprint_id);
        announce_change(relation);
    }
    table_close(relation, NoLock);
}

std::int32_t rotate_fingerprint_secret() {
    create_secrets();
    Relation relation = open_table(Table::secret, ShareRowExclusiveLock);
    const std::int32_t newest = stored_secrets().back().id;
    if (newest == INT_MAX) elog(ERROR, "fingerprint secrets have run out of ids");
    Assert(newest >= first_fingerprint_id);
    make_secret(relation, newest + 1);
    announce_change(relation);
    table_close(relation, NoLock);
    return newest + 1;
}

std::span<const StoredSecret> stored_secrets() {
    std::size_t room = 8;
    std::size_t count = 0;
    auto* found = static_cast<StoredSecret*>(palloc(room * sizeof(StoredSecret)));
    scan_committed(Table::secret, [&](TupleTableSlot* slot) {
        if (count == room) {
            room *= 2;
            found = static_cast<StoredSecret*>(repalloc(found, room * sizeof(StoredSecret)));
        }
        found[count++] = read_row(slot);
    });
    std::ranges::sort(found, found + count, {}, &StoredSecret::id);
    return {found, count};
}

StoredSecret read_secret(Datum value) {
    HeapTupleHeader row = DatumGetHeapTupleHeader(value);
    std::array<Datum, columns> values{};
    bool missing = false;
    for (std::size_t i = 0; i < values.size(); ++i) {
        bool null;
        values[i] = GetAttributeByNum(row, static_cast<AttrNumber>(i + 1), &null);
        missing = missing || null;
    }
    if (missing ||
        VARSIZE_ANY_EXHDR(DatumGetByteaPP(values[column_secret])) != sizeof(core::Secret))
        report::invalid_argument("identity", "A secret is incomplete, or does not have 32 bytes.",
                                 "Pass the result of idem.export_identity() unchanged.");
    return {DatumGetInt32(values[column_id]), secret_of(values[column_secret]),
            DatumGetTimestampTz(values[column_created])};
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
