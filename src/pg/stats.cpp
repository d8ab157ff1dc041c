#include "pg/stats.hpp"

#include "pg/guc.hpp"
#include "pg/table.hpp"

namespace idem::pg {
namespace {

// In shared memory. A slot's scope is read and written under the lock; in a free slot its database
// is InvalidOid.
struct alignas(PG_CACHE_LINE_SIZE) Slot {
    ScopeIdentity scope;
    TimestampTz since;
    std::array<pg_atomic_uint64, number_count> numbers;
};

static_assert(sizeof(Slot) == 1152, "the description of idem.counted_scopes says how large it is");

// In shared memory: this, then the slots.
struct alignas(PG_CACHE_LINE_SIZE) Shared {
    pg_atomic_uint64 given_up;  // slots given up so far; when it changes, backends look again
    std::int32_t slots;
    std::int32_t used;  // the slots from here on were never allotted
};

// What a backend remembers: the slot of a scope, or NULL when it found none free.
struct KnownSlot {
    ScopeIdentity scope;
    Slot* slot;
};

constinit Shared* shared = nullptr;
constinit LWLock* lock = nullptr;
constinit std::array<KnownSlot, 64> known{};
constinit std::uint64_t known_given_up = 0;

// ---- Slots --------------------------------------------------------------------------------------

std::span<Slot> all_slots() {
    return {reinterpret_cast<Slot*>(shared + 1), static_cast<std::size_t>(shared->slots)};
}

std::span<Slot> used_slots() {
    Assert(shared->used >= 0 && shared->used <= shared->slots);
    return all_slots().first(static_cast<std::size_t>(shared->used));
}

void zero(Slot& slot) {
    for (pg_atomic_uint64& number : slot.numbers) pg_atomic_write_u64(&number, 0);
    slot.since = GetCurrentTimestamp();
}

ScopeIdentity identity(std::int32_t scope_id) {
    return {MyDatabaseId, table_oid(Table::scope), scope_id};
}

Slot* find(const ScopeIdentity& scope) {
    for (Slot& slot : used_slots())
        if (slot.scope == scope) return &slot;
    return nullptr;
}

// The caller holds the lock, or is the postmaster that sets up shared memory.
Slot* allot(const ScopeIdentity& scope) {
    Assert(!IsUnderPostmaster || LWLockHeldByMeInMode(lock, LW_EXCLUSIVE));
    Assert(OidIsValid(scope.database) && shared->used <= shared->slots);
    Slot* slot = find(ScopeIdentity{});
    if (slot == nullptr) {
        if (shared->used == shared->slots) return nullptr;
        slot = &all_slots()[static_cast<std::size_t>(shared->used++)];
    }
    zero(*slot);
    slot->scope = scope;
    return slot;
}

Slot* find_or_allot(const ScopeIdentity& scope) {
    LWLockAcquire(lock, LW_SHARED);
    Slot* slot = find(scope);
    LWLockRelease(lock);
    if (slot != nullptr) return slot;
    LWLockAcquire(lock, LW_EXCLUSIVE);
    slot = find(scope);
    if (slot == nullptr) slot = allot(scope);
    LWLockRelease(lock);
    return slot;
}

// The slot of a scope of this database. NULL when nothing is counted, or when every slot belongs to
// another scope.
Slot* slot_of(std::int32_t scope_id) {
    if (shared == nullptr) return nullptr;
    const ScopeIdentity scope = identity(scope_id);
    const std::uint64_t given_up = pg_atomic_read_u64(&shared->given_up);
    if (given_up != known_given_up) {
        known = {};
        known_given_up = given_up;
    }
    KnownSlot& mine = known[static_cast<std::uint32_t>(scope.scope_id) % known.size()];
    if (mine.scope != scope) mine = {scope, find_or_allot(scope)};
    return mine.slot;
}

ScopeStats read(Slot& slot) {
    ScopeStats stats{{}, slot.since};
    for (std::size_t i = 0; i < number_count; ++i)
        stats.numbers[i] = static_cast<std::int64_t>(pg_atomic_read_u64(&slot.numbers[i]));
    return stats;
}

// ---- The file -----------------------------------------------------------------------------------

constexpr const char* file_path = "pg_stat/idem.stat";
constexpr const char* unfinished_path = "pg_stat/idem.stat.tmp";

struct Header {
    std::uint32_t magic = 0x1DE35703;  // the last byte is the version of the layout
    std::uint32_t numbers = number_count;
    bool operator==(const Header&) const = default;
};

// Each row has a checksum of its own, so that the rows of a truncated file can be used.
struct FileRow {
    ScopeIdentity scope;
    ScopeStats stats;
    pg_crc32c crc;
};
static_assert(std::is_trivially_copyable_v<FileRow>);

pg_crc32c crc_of(const FileRow& row) {
    pg_crc32c crc;
    INIT_CRC32C(crc);
    COMP_CRC32C(crc, &row, offsetof(FileRow, crc));
    FIN_CRC32C(crc);
    return crc;
}

bool write_row(FILE* file, Slot& slot) {
    FileRow row;
    memset(static_cast<void*>(&row), 0, sizeof row);  // the checksum covers the padding
    row.scope = slot.scope;
    row.stats = read(slot);
    row.crc = crc_of(row);
    return fwrite(&row, sizeof row, 1, file) == 1;
}

void file_failure(const char* attempt) {
    ereport(LOG, (errcode_for_file_access(),
                  errmsg("could not %s file \"%s\": %m", attempt, file_path)));
}

extern "C" {
// Runs in the postmaster after all other processes have ended. A code other than 0 means a crash.
static void at_shutdown(int code, Datum) {
    if (code != 0 || shared == nullptr) return;
    FILE* file = AllocateFile(unfinished_path, PG_BINARY_W);
    const Header header;
    bool good = file != nullptr && fwrite(&header, sizeof header, 1, file) == 1;
    for (Slot& slot : used_slots())
        if (good && OidIsValid(slot.scope.database)) good = write_row(file, slot);
    if (file != nullptr && FreeFile(file) != 0) good = false;
    if (good) {
        (void)durable_rename(unfinished_path, file_path, LOG);
    } else {
        file_failure("write");
        (void)unlink(unfinished_path);
    }
}
}

void restore(const FileRow& row) {
    Slot* slot = allot(row.scope);
    if (slot == nullptr) return;
    slot->since = row.stats.since;
    for (std::size_t i = 0; i < number_count; ++i)
        pg_atomic_write_u64(&slot->numbers[i], static_cast<std::uint64_t>(row.stats.numbers[i]));
}

void read_stats_file() {
    FILE* file = AllocateFile(file_path, PG_BINARY_R);
    if (file == nullptr) {
        if (errno != ENOENT) file_failure("read");
        return;
    }
    const Header expected;
    Header header{};
    bool good = fread(&header, sizeof header, 1, file) == 1 && header == expected;
    for (FileRow row; good && fread(&row, sizeof row, 1, file) == 1;) {
        good = row.crc == crc_of(row);
        if (good) restore(row);
    }
    if (!good)
        ereport(LOG, (errcode(ERRCODE_DATA_CORRUPTED),
                      errmsg("ignoring invalid data in file \"%s\"", file_path)));
    FreeFile(file);
    (void)unlink(file_path);
}

}  // namespace

bool stats_available() {
    return shared != nullptr;
}

void count(std::int32_t scope_id, Counter which, std::int64_t n) {
    Assert(which < Counter::count);
    if (Slot* slot = slot_of(scope_id); slot != nullptr)
        pg_atomic_fetch_add_u64(&slot->numbers[index_of(which)], n);
}

void observe(std::int32_t scope_id, Duration which, std::int64_t usecs) {
    Assert(which < Duration::count);
    Slot* slot = slot_of(scope_id);
    if (slot == nullptr) return;
    pg_atomic_uint64* buckets = &slot->numbers[first_bucket_of(which)];
    pg_atomic_fetch_add_u64(&buckets[core::bucket_of(usecs)], 1);
    pg_atomic_fetch_add_u64(&buckets[core::bucket_count], std::max<std::int64_t>(usecs, 0));
}

std::optional<ScopeStats> read_stats(std::int32_t scope_id) {
    Slot* slot = slot_of(scope_id);
    return slot != nullptr ? std::optional(read(*slot)) : std::nullopt;
}

void reset_stats(std::optional<std::int32_t> scope_id) {
    if (shared == nullptr) return;
    const ScopeIdentity which = identity(scope_id.value_or(0));
    LWLockAcquire(lock, LW_EXCLUSIVE);
    for (Slot& slot : used_slots()) {
        const bool meant = scope_id ? slot.scope == which
                                    : slot.scope.database == which.database &&
                                          slot.scope.relation == which.relation;
        if (meant) zero(slot);
    }
    LWLockRelease(lock);
}

std::span<const ScopeIdentity> counted_scopes() {
    if (shared == nullptr) return {};
    const auto size = sizeof(ScopeIdentity) * static_cast<Size>(shared->slots);
    auto* scopes = static_cast<ScopeIdentity*>(palloc(size));
    std::size_t n = 0;
    LWLockAcquire(lock, LW_SHARED);
    for (const Slot& slot : used_slots())
        if (OidIsValid(slot.scope.database)) scopes[n++] = slot.scope;
    LWLockRelease(lock);
    return {scopes, n};
}

void give_up_stats(const ScopeIdentity& scope) {
    LWLockAcquire(lock, LW_EXCLUSIVE);
    if (Slot* slot = find(scope); slot != nullptr) {
        slot->scope = ScopeIdentity{};
        pg_atomic_fetch_add_u64(&shared->given_up, 1);
    }
    LWLockRelease(lock);
}

Size stats_size() {
    return add_size(sizeof(Shared), mul_size(sizeof(Slot), static_cast<Size>(guc::counted_scopes)));
}

void attach_stats(void* memory, LWLockPadded* locks, bool found) {
    shared = static_cast<Shared*>(memory);
    lock = &locks->lock;
    if (!IsUnderPostmaster) on_shmem_exit(at_shutdown, Datum{0});
    if (found) return;
    shared->slots = guc::counted_scopes;
    shared->used = 0;
    pg_atomic_init_u64(&shared->given_up, 0);
    for (Slot& slot : all_slots()) {
        slot.scope = ScopeIdentity{};
        for (pg_atomic_uint64& number : slot.numbers) pg_atomic_init_u64(&number, 0);
    }
    read_stats_file();
}

}  // namespace idem::pg
