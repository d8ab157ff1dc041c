#include "pg/store/secret.hpp"

#include "pg/store/table.hpp"

namespace idem::pg {
namespace {

enum Column { column_id, column_purpose, column_secret, column_created, columns };
static_assert(columns == secret_columns);

constexpr std::int32_t seed_id = 0;
constexpr std::int32_t first_fingerprint_id = 1;
constexpr const char* missing_hint =
    "Restore the rows of idem.secret from the dump that the records came from.";

constinit Secrets cache{};
constinit bool cached = false;

struct StoredSecret {
    std::int32_t id;  // seed_id, or that of a fingerprint secret
    core::Secret secret;
};

// The older fingerprint secret that was used last: after a rotation, most retries need the same.
// With the id of the seed, there is none.
constinit StoredSecret older{};

// Counts the invalidations. One that arrives while the table is being read may concern rows that
// were read already, so only what was read without one is cached.
constinit std::uint64_t invalidations = 0;

core::Secret secret_of(Datum value) {
    const core::Bytes bytes = core::as_bytes(view_of(DatumGetByteaPP(value)));
    core::Secret secret{};
    std::copy_n(bytes.begin(), std::min(bytes.size(), secret.size()), secret.begin());
    return secret;
}

// All of them, by id; palloc'd. Empty before the first scope.
std::span<const StoredSecret> stored_secrets() {
    std::size_t count = 0;
    auto* found = static_cast<StoredSecret*>(palloc(sizeof(StoredSecret)));
    scan_committed(Table::secret, [&](TupleTableSlot* slot) {
        found = static_cast<StoredSecret*>(repalloc(found, (count + 1) * sizeof(StoredSecret)));
        slot_getallattrs(slot);
        found[count++] = {DatumGetInt32(slot->tts_values[column_id]),
                          secret_of(slot->tts_values[column_secret])};
    });
    std::ranges::sort(found, found + count, {}, &StoredSecret::id);
    return {found, count};
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

void make_secret(Relation relation, std::int32_t id) {
    core::Secret made;
    if (!pg_strong_random(made.data(), made.size())) report::crypto_failure();
    Row<columns> row;
    row.set_int(column_id, id);
    row.set_text(column_purpose, id == seed_id ? "seed" : "fingerprint");
    row.set_text(column_secret, {reinterpret_cast<const char*>(made.data()), made.size()});
    row.set_time(column_created, GetCurrentTimestamp());
    insert_row(relation, row.values(), row.nulls());
}

}  // namespace

void forget_secrets() {
    ++invalidations;
    cached = false;
    older.id = seed_id;
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
    const auto wanted = static_cast<std::int32_t>(id);
    if (wanted != seed_id && older.id == wanted) return older.secret;
    const std::uint64_t before = invalidations;
    const auto stored = stored_secrets();
    const auto found = std::ranges::find(stored, wanted, &StoredSecret::id);
    if (found == stored.end())
        ereport(ERROR,
                (errcode(ERRCODE_DATA_CORRUPTED), errmsg("fingerprint secret %u is missing", id),
                 errdetail("A record's fingerprint was computed with this secret."),
                 errhint("%s", missing_hint)));
    if (invalidations == before) older = *found;
    return found->secret;
}

void create_secrets() {
    Relation relation = open_to_change(Table::secret);
    if (current_secrets()) return table_close(relation, NoLock);
    make_secret(relation, seed_id);
    make_secret(relation, first_fingerprint_id);
    close_changed(relation);
}

std::int32_t rotate_fingerprint_secret() {
    create_secrets();
    Relation relation = open_to_change(Table::secret);
    const std::int32_t newest = stored_secrets().back().id;
    if (newest == INT_MAX) elog(ERROR, "fingerprint secrets have run out of ids");
    Assert(newest >= first_fingerprint_id);
    make_secret(relation, newest + 1);
    close_changed(relation);
    return newest + 1;
}

}  // namespace idem::pg
