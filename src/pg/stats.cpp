#include "pg/stats.hpp"

#include "pg/guc.hpp"
#include "pg/table.hpp"

#include "pg/report.hpp"

namespace idem::pg {
namespace {

constexpr const char* file_path = "pg_stat/idem.stat";
constexpr const char* unfinished_path = "pg_stat/idem.stat.tmp";

struct SavedStats {
    ScopeIdentity scope;
    ScopeStats stats;
};

struct Header {
    std::uint32_t magic = 0x1DE35702;  // the last byte is the version of the layout
    std::uint32_t counters = counter_count;
    std::uint32_t durations = duration_count;
    std::uint32_t buckets = core::bucket_count;
    bool operator==(const Header&) const = default;
};

// Each row has a checksum of its own, so that the rows of a truncated file can be used.
struct FileRow {
    SavedStats saved;
    pg_crc32c crc;
};
static_assert(std::is_trivially_copyable_v<FileRow>);

pg_crc32c crc_of(const SavedStats& saved) {
    pg_crc32c crc;
    INIT_CRC32C(crc);
    COMP_CRC32C(crc, &saved, sizeof saved);
    FIN_CRC32C(crc);
    return crc;
}

class StatsWriter {
  public:
    StatsWriter();
    void write(const SavedStats& saved);
    void finish();

  private:
    FILE* file_;
    bool failed_ = false;
};
static_assert(std::is_trivially_destructible_v<StatsWriter>);

StatsWriter::StatsWriter() : file_(AllocateFile(unfinished_path, PG_BINARY_W)) {
    const Header header;
    failed_ = file_ == nullptr || fwrite(&header, sizeof header, 1, file_) != 1;
}

void StatsWriter::write(const SavedStats& saved) {
    if (failed_) return;
    FileRow row;
    memset(static_cast<void*>(&row), 0, sizeof row);  // the checksum covers the padding
    row.saved.scope = saved.scope;
    row.saved.stats = saved.stats;
    row.crc = crc_of(row.saved);
    failed_ = fwrite(&row, sizeof row, 1, file_) != 1;
}

// errno says what went wrong.
void log_failure(const char* attempt) {
    ereport(LOG, (errcode_for_file_access(),
                  errmsg("could not %s file \"%s\": %m", attempt, file_path)));
}

void StatsWriter::finish() {
    if (file_ != nullptr && FreeFile(file_) != 0) failed_ = true;
    if (failed_) {
        log_failure("write");
        (void)unlink(unfinished_path);
        return;
    }
    (void)durable_rename(unfinished_path, file_path, LOG);
}

void read_stats_file(void (*use)(const SavedStats&)) {
    FILE* file = AllocateFile(file_path, PG_BINARY_R);
    if (file == nullptr) {
        if (errno != ENOENT) log_failure("read");
        return;
    }
    const Header expected;
    Header header{};
    bool good = fread(&header, sizeof header, 1, file) == 1 && header == expected;
    for (FileRow row; good && fread(&row, sizeof row, 1, file) == 1;) {
        good = row.crc == crc_of(row.saved);
        if (good) use(row.saved);
    }
    if (!good)
        ereport(LOG, (errcode(ERRCODE_DATA_CORRUPTED),
                      errmsg("ignoring invalid data in file \"%s\"", file_path)));
    FreeFile(file);
    (void)unlink(file_path);
}

struct SharedHistogram {
    std::array<pg_atomic_uint64, core::bucket_count> counts;
    pg_atomic_uint64 total;
};

// In shared memory. A slot's scope is read and written under the lock; in a free slot its database
// is InvalidOid.
struct alignas(PG_CACHE_LINE_SIZE) Slot {
    ScopeIdentity scope;
    TimestampTz since;
    std::array<pg_atomic_uint64, counter_count> counters;
    std::array<SharedHistogram, duration_count> durations;
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

std::span<Slot> all_slots() {
    return {reinterpret_cast<Slot*>(shared + 1), static_cast<std::size_t>(shared->slots)};
}

std::span<Slot> used_slots() {
    Assert(shared->used >= 0 && shared->used <= shared->slots);
    return all_slots().first(static_cast<std::size_t>(shared->used));
}

std::size_t number_of(const Slot& slot) {
    return static_cast<std::size_t>(&slot - all_slots().data());
}

// Calls use(number) for each number in the slot.
template <class Use>
void for_each_number(Slot& slot, Use use) {
    for (pg_atomic_uint64& counter : slot.counters) use(counter);
    for (SharedHistogram& durations : slot.durations) {
        for (pg_atomic_uint64& bucket : durations.counts) use(bucket);
        use(durations.total);
    }
}

void zero(Slot& slot) {
    clear_hot_keys(number_of(slot));
    for_each_number(slot, [](pg_atomic_uint64& number) { pg_atomic_write_u64(&number, 0); });
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

// NULL when every slot belongs to another scope.
Slot* slot_of(const ScopeIdentity& scope) {
    const std::uint64_t given_up = pg_atomic_read_u64(&shared->given_up);
    if (given_up != known_given_up) {
        known = {};
        known_given_up = given_up;
    }
    KnownSlot& mine = known[static_cast<std::uint32_t>(scope.scope_id) % known.size()];
    if (mine.scope != scope) mine = {scope, find_or_allot(scope)};
    return mine.slot;
}

// The same for a scope of this database; NULL also when nothing is counted.
Slot* counted_slot(std::int32_t scope_id) {
    return shared != nullptr ? slot_of(identity(scope_id)) : nullptr;
}

// Returns the value before.
std::uint64_t add(Slot& slot, Counter which, std::int64_t n) {
    Assert(which < Counter::count);
    return pg_atomic_fetch_add_u64(&slot.counters[static_cast<std::size_t>(which)], n);
}

// Copies numbers out of shared memory, or into it.
template <std::size_t N>
void copy(std::array<std::int64_t, N>& to, std::array<pg_atomic_uint64, N>& from) {
    for (std::size_t i = 0; i < N; ++i)
        to[i] = static_cast<std::int64_t>(pg_atomic_read_u64(&from[i]));
}

template <std::size_t N>
void copy(std::array<pg_atomic_uint64, N>& to, const std::array<std::int64_t, N>& from) {
    for (std::size_t i = 0; i < N; ++i)
        pg_atomic_write_u64(&to[i], static_cast<std::uint64_t>(from[i]));
}

ScopeStats read(Slot& slot) {
    ScopeStats stats{{}, {}, slot.since};
    copy(stats.counters, slot.counters);
    for (std::size_t i = 0; i < duration_count; ++i) {
        copy(stats.durations[i].counts, slot.durations[i].counts);
        stats.durations[i].total =
            static_cast<std::int64_t>(pg_atomic_read_u64(&slot.durations[i].total));
    }
    return stats;
}

void restore(const SavedStats& saved) {
    Slot* slot = allot(saved.scope);
    if (slot == nullptr) return;
    slot->since = saved.stats.since;
    copy(slot->counters, saved.stats.counters);
    for (std::size_t i = 0; i < duration_count; ++i) {
        copy(slot->durations[i].counts, saved.stats.durations[i].counts);
        pg_atomic_write_u64(&slot->durations[i].total,
                            static_cast<std::uint64_t>(saved.stats.durations[i].total));
    }
}

extern "C" {
// Runs in the postmaster after all other processes have ended. A code other than 0 means a crash.
static void at_shutdown(int code, Datum) {
    if (code != 0 || shared == nullptr) return;
    StatsWriter writer;
    for (Slot& slot : used_slots())
        if (OidIsValid(slot.scope.database)) writer.write({slot.scope, read(slot)});
    writer.finish();
}
}

}  // namespace

bool stats_available() {
    return shared != nullptr;
}

void count(std::int32_t scope_id, Counter which, std::int64_t n) {
    if (Slot* slot = counted_slot(scope_id); slot != nullptr) add(*slot, which, n);
}

void count_replay(std::int32_t scope_id, const core::Digest& digest) {
    Slot* slot = counted_slot(scope_id);
    if (slot == nullptr) return;
    note_hot_replay(number_of(*slot), digest, add(*slot, Counter::replays, 1));
}

void count_conflict(std::int32_t scope_id, const core::Digest& digest) {
    Slot* slot = counted_slot(scope_id);
    if (slot == nullptr) return;
    add(*slot, Counter::conflicts, 1);
    note_hot_conflict(number_of(*slot), digest);
}

void observe(std::int32_t scope_id, Duration which, std::int64_t usecs) {
    Assert(which < Duration::count);
    if (shared == nullptr) return;
    Slot* slot = slot_of(identity(scope_id));
    if (slot == nullptr) return;
    SharedHistogram& durations = slot->durations[static_cast<std::size_t>(which)];
    pg_atomic_fetch_add_u64(&durations.counts[core::bucket_of(usecs)], 1);
    pg_atomic_fetch_add_u64(&durations.total, std::max<std::int64_t>(usecs, 0));
}

std::optional<ScopeStats> read_stats(std::int32_t scope_id) {
    Slot* slot = counted_slot(scope_id);
    return slot != nullptr ? std::optional(read(*slot)) : std::nullopt;
}

std::span<const HotKeyCounts> read_hot_keys(std::int32_t scope_id) {
    Slot* slot = counted_slot(scope_id);
    if (slot == nullptr) return {};
    return hot_keys_in(number_of(*slot));
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
        for_each_number(slot, [](pg_atomic_uint64& number) { pg_atomic_init_u64(&number, 0); });
    }
    read_stats_file(restore);
}

}  // namespace idem::pg
