#include "pg/survey.hpp"

#include "core/decision.hpp"
#include "core/weakness.hpp"
#include "pg/record.hpp"
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

// An expired row of a leased claim keeps what is over; only a live one is in progress.
void count_in_progress(Tally& tally, const Glance& seen, TimestampTz now) {
    const TimestampTz lease_end = seen.lease_end.value_or(0);
    if (core::exhausted(seen.attempt, tally.max_attempts, lease_end, now)) {
        ++tally.failed;
        ++tally.exhausted;
        return;
    }
    ++tally.in_progress;
    if (seen.released || lease_end > now) return;
    ++tally.lapsed;
    lower(tally.lapsed_since, lease_end);
}

void count_live(Tally& tally, const Glance& seen, TimestampTz now) {
    switch (seen.state) {
        case core::State::in_progress:
            count_in_progress(tally, seen, now);
            break;
        case core::State::completed:
            ++tally.completed;
            break;
        case core::State::failed:
            ++tally.failed;
            break;
    }
    if (core::weakness(seen.key) != core::Weakness::none) ++tally.weak;
    tally.answer_bytes += seen.answer_bytes;
    lower(tally.oldest, seen.created);
    raise(tally.newest, seen.created);
    lower(tally.next_expiry, seen.expires);
}

// A record of a dropped scope may be purged at once; since when, nobody knows.
void count_record(Tally& tally, const Glance& seen, TimestampTz now) {
    if (tally.scope_id != no_scope && seen.expires > now) return count_live(tally, seen, now);
    ++tally.expired;
    if (seen.expires <= now) lower(tally.expired_since, seen.expires);
}

HTAB* make_tallies() {
    HASHCTL control{};
    control.keysize = sizeof(std::int32_t);
    control.entrysize = sizeof(Tally);
    control.hcxt = CurrentMemoryContext;
    return hash_create("idem tallies", 64, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

// Somewhere between the two, the first included.
BlockNumber random_block(BlockNumber first, BlockNumber end) {
    return first + static_cast<BlockNumber>(pg_prng_double(&pg_global_prng_state) * (end - first));
}

}  // namespace

Survey::Survey() : tallies_(make_tallies()) {
    add_scope(no_scope, std::nullopt);
}

void Survey::add_scope(std::int32_t id, std::optional<std::int32_t> max_attempts) {
    auto* tally = static_cast<Tally*>(hash_search(tallies_, &id, HASH_ENTER, nullptr));
    *tally = Tally{};
    tally->scope_id = id;
    tally->max_attempts = max_attempts;
}

Tally& Survey::tally_of(std::int32_t scope_id) {
    void* found = hash_search(tallies_, &scope_id, HASH_FIND, nullptr);
    return found == nullptr ? tally_of(no_scope) : *static_cast<Tally*>(found);
}

bool Survey::knows(std::int32_t scope_id) const {
    return hash_search(tallies_, &scope_id, HASH_FIND, nullptr) != nullptr;
}

const Tally& Survey::tally(std::int32_t scope_id) const {
    return *static_cast<const Tally*>(hash_search(tallies_, &scope_id, HASH_FIND, nullptr));
}

void Survey::read(Relation records, TimestampTz now, BlockNumber first, BlockNumber size) {
    TupleTableSlot* slot = table_slot_create(records, nullptr);
    TableScanDesc scan = scan_blocks(records, first, size);
    while (table_scan_getnextslot(scan, ForwardScanDirection, slot)) {
        CHECK_FOR_INTERRUPTS();
        const Glance seen = glance(slot);
        count_record(tally_of(seen.scope_id), seen, now);
    }
    table_endscan(scan);
    ExecDropSingleTupleTableSlot(slot);
}

void Survey::extrapolate() {
    const auto scale = [this](std::int64_t& count) {
        count = static_cast<std::int64_t>(static_cast<double>(count) / coverage_ + 0.5);
    };
    HASH_SEQ_STATUS status;
    hash_seq_init(&status, tallies_);
    while (auto* tally = static_cast<Tally*>(hash_seq_search(&status)))
        for (std::int64_t* count :
             {&tally->in_progress, &tally->completed, &tally->failed, &tally->lapsed,
              &tally->exhausted, &tally->weak, &tally->answer_bytes, &tally->expired})
            scale(*count);
}

void Survey::run(TimestampTz now, BlockNumber max_blocks) {
    Relation records = open_table(Table::record, AccessShareLock);
    const BlockNumber blocks = RelationGetNumberOfBlocks(records);
    if (blocks <= std::max(max_blocks, stretch)) {
        read(records, now, 0, blocks);
    } else {
        const BlockNumber stretches = std::max<BlockNumber>(max_blocks / stretch, 1);
        for (BlockNumber i = 0; i < stretches; ++i) {
            const auto share = [=](BlockNumber n) {
                return static_cast<BlockNumber>(std::uint64_t{blocks} * n / stretches);
            };
            read(records, now, random_block(share(i), share(i + 1) - stretch + 1), stretch);
        }
        coverage_ = static_cast<double>(stretches) * stretch / blocks;
        extrapolate();
    }
    table_close(records, AccessShareLock);
}

}  // namespace idem::pg
