#include "pg/survey.hpp"

#include "core/decision.hpp"
#include "core/duration.hpp"
#include "core/weakness.hpp"
#include "pg/table.hpp"

namespace idem::pg {
namespace {

constexpr BlockNumber stretch = 16;

void lower(std::optional<TimestampTz>& least, TimestampTz time) {
    least = std::min(least.value_or(time), time);
}

void raise(std::optional<TimestampTz>& most, TimestampTz time) {
    most = std::max(most.value_or(time), time);
}

// Counts an unexpired row of a leased claim. Its lease may have ended, or it may have been released
// and be due again.
void count_in_progress(ScopeTotals& totals, const RecordHead& seen, TimestampTz now) {
    const TimestampTz lease_end = seen.lease_end.value_or(0);
    if (core::exhausted(seen.attempt, totals.max_attempts, seen.extra_attempts, lease_end, now)) {
        ++totals.failed;
        ++totals.exhausted;
        return;
    }
    ++totals.in_progress;
    if (lease_end > now) return;
    ++totals.lapsed;
    lower(totals.lapsed_since, lease_end);
}

void count_life(ScopeTotals& totals, std::int64_t life) {
    if (life < totals.ttl / 10) ++totals.short_lived;
    if (life > 2 * 365 * core::usecs_per_day) ++totals.long_lived;
}

bool is_live(const ScopeTotals& totals, const RecordHead& seen, TimestampTz now) {
    return totals.scope_id != no_scope && seen.expires > now;
}

void count_live(ScopeTotals& totals, const RecordHead& seen, TimestampTz now) {
    switch (seen.state) {
        case core::State::in_progress:
            count_in_progress(totals, seen, now);
            break;
        case core::State::completed:
            ++totals.completed;
            break;
        case core::State::failed:
            ++totals.failed;
            break;
    }
    if (!core::weakness(seen.key.view()).empty()) ++totals.weak;
    totals.answer_bytes += seen.answer_bytes;
    count_life(totals, seen.expires - seen.created);
    lower(totals.oldest, seen.created);
    raise(totals.newest, seen.created);
    lower(totals.next_expiry, seen.expires);
}

// A record of a dropped scope can be purged at once; it is not known since when.
void count_record(ScopeTotals& totals, const RecordHead& seen, TimestampTz now) {
    if (is_live(totals, seen, now)) return count_live(totals, seen, now);
    ++totals.expired;
    if (seen.expires <= now) lower(totals.expired_since, seen.expires);
}

std::uint64_t hash_of(std::string_view tenant) {
    return hash_bytes_extended(reinterpret_cast<const unsigned char*>(tenant.data()),
                               static_cast<int>(tenant.size()), 0);
}

bool is_with_and_without(const UuidTenants& tenants) {
    return tenants.with_tenant && tenants.without_tenant;
}

// A random block from first to end, end excluded.
std::uint64_t random_block(std::uint64_t first, std::uint64_t end) {
    Assert(first < end);
    return first + static_cast<std::uint64_t>(pg_prng_double(&pg_global_prng_state) *
                                              static_cast<double>(end - first));
}

}  // namespace

Survey::Survey() {
    totals_.create("idem totals", 64, CurrentMemoryContext);
    add_scope(no_scope, std::nullopt, 0);
}

void Survey::add_scope(std::int32_t id, std::optional<std::int32_t> max_attempts,
                       std::int64_t ttl) {
    bool found;
    ScopeTotals* totals = totals_.enter(id, found);
    *totals = ScopeTotals{};
    totals->scope_id = id;
    totals->max_attempts = max_attempts;
    totals->ttl = ttl;
}

void Survey::compare_tenants() {
    uuids_.create("idem tenants of a UUID", 1024, CurrentMemoryContext);
    compares_tenants_ = true;
}

ScopeTotals& Survey::totals_for(std::int32_t scope_id) {
    ScopeTotals* found = totals_.find(scope_id);
    if (found == nullptr) found = totals_.find(no_scope);
    Assert(found != nullptr);
    return *found;
}

bool Survey::knows(std::int32_t scope_id) const {
    return totals_.find(scope_id) != nullptr;
}

const ScopeTotals& Survey::totals(std::int32_t scope_id) const {
    const ScopeTotals* found = totals_.find(scope_id);
    Assert(found != nullptr);
    return *found;
}

void Survey::compare_tenant(ScopeTotals& totals, const RecordHead& seen) {
    const auto uuid = core::canonical_uuid(seen.key.view());
    if (!uuid || !core::is_unique_uuid(*uuid)) return;
    bool found;
    UuidTenants* tenants = uuids_.enter({totals.scope_id, *uuid}, found);
    if (!found) *tenants = UuidTenants{tenants->key};
    const UuidTenants before = *tenants;
    if (seen.tenant.empty()) {
        tenants->without_tenant = true;
    } else {
        const std::uint64_t tenant = hash_of(seen.tenant);
        if (!before.with_tenant) tenants->first_tenant = tenant;
        tenants->with_tenant = true;
        tenants->with_several |= tenant != tenants->first_tenant;
    }
    if (tenants->with_several && !before.with_several) ++totals.shared;
    if (is_with_and_without(*tenants) && !is_with_and_without(before)) ++totals.untenanted;
}

void Survey::read(Relation records, TimestampTz now, BlockNumber first, BlockNumber size) {
    scan_blocks(records, first, size, [&](TupleTableSlot* slot) {
        const RecordHead seen = record_head(slot);
        ScopeTotals& totals = totals_for(seen.scope_id);
        count_record(totals, seen, now);
        if (compares_tenants_ && is_live(totals, seen, now)) compare_tenant(totals, seen);
    });
}

// Reads blocks of the range that all tables form. A table that is gone has none any more.
void Survey::read(TimestampTz now, std::uint64_t first, std::uint64_t size) {
    for (const Part& part : parts_) {
        const std::uint64_t begin = std::max(first, part.begin);
        const std::uint64_t end = std::min(first + size, part.end);
        if (begin >= end) continue;
        Relation records = try_open_records(part.table, AccessShareLock);
        if (records == nullptr) continue;
        read(records, now, static_cast<BlockNumber>(begin - part.begin),
             static_cast<BlockNumber>(end - begin));
        table_close(records, AccessShareLock);
    }
}

std::span<const Survey::Part> Survey::measure() {
    List* tables = record_tables();
    auto* parts =
        static_cast<Part*>(palloc(sizeof(Part) * static_cast<std::size_t>(list_length(tables))));
    std::size_t count = 0;
    std::uint64_t blocks = 0;
    for (int i = 0; i < list_length(tables); ++i) {
        Relation table = try_open_records(list_nth_oid(tables, i), AccessShareLock);
        if (table == nullptr) continue;
        const std::uint64_t begin = blocks;
        blocks += RelationGetNumberOfBlocks(table);
        parts[count++] = {RelationGetRelid(table), begin, blocks};
        table_close(table, AccessShareLock);
    }
    return {parts, count};
}

void Survey::extrapolate() {
    Assert(coverage_ > 0 && coverage_ <= 1);
    totals_.for_each([this](ScopeTotals& totals) {
        for (std::int64_t* count :
             {&totals.in_progress, &totals.completed, &totals.failed, &totals.lapsed,
              &totals.exhausted, &totals.weak, &totals.answer_bytes, &totals.short_lived,
              &totals.long_lived, &totals.expired})
            *count = static_cast<std::int64_t>(static_cast<double>(*count) / coverage_ + 0.5);
    });
}

void Survey::run(TimestampTz now, BlockNumber max_blocks) {
    parts_ = measure();
    const std::uint64_t blocks = parts_.empty() ? 0 : parts_.back().end;
    if (blocks <= std::max(max_blocks, stretch)) return read(now, 0, blocks);
    const BlockNumber stretches = std::max<BlockNumber>(max_blocks / stretch, 1);
    for (BlockNumber i = 0; i < stretches; ++i) {
        const auto share = [=](std::uint64_t n) { return blocks * n / stretches; };
        read(now, random_block(share(i), share(i + 1) - stretch + 1), stretch);
    }
    coverage_ = static_cast<double>(stretches) * stretch / static_cast<double>(blocks);
    extrapolate();
}

}  // namespace idem::pg
