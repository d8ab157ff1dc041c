// idem.once_each(): which of these keys are new? They are finished from now on.
//
// Set-wise once(), for tens of thousands of keys in one call, so it takes no key locks: the unique
// index alone keeps concurrent calls apart (see pg/bulk). Keys go in the order of their digests,
// whatever the order of the input: so calls do not deadlock with each other. It waits for
// transactions as a unique index does, not within the scope's bound. An atomic claim in flight has
// no row yet, and is not waited for: it gets 40001 when it completes.
//
// Whatever holds the key, it is not new: the stored answer, request or failure is not asked for.
#include "api/arguments.hpp"
#include "api/finishing.hpp"
#include "api/limits.hpp"
#include "api/new_key_rules.hpp"
#include "pg/bulk.hpp"
#include "pg/report.hpp"
#include "pg/stats.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;
using core::Verdict;
using pg::Counter;

enum Argument { arg_scope, arg_keys, arg_tenant };

using core::first_attempt;

struct Element {
    core::Digest digest;
    int position;  // in the array, from 0
};

// All of it lives as long as the call; what grows with the number of keys is a few bytes a key
// beside the array itself.
struct Batch {
    std::span<Datum> keys;     // as in the array
    std::span<Element> order;  // by digest
    std::span<bool> is_new;    // as in the array
    pg::Scope scope;           // a copy: the cache may go while rows are written
    std::string_view tenant;

    std::string_view key(const Element& element) const {
        return pg::view_of(DatumGetTextPP(keys[static_cast<std::size_t>(element.position)]));
    }
    pg::KeyName name(const Element& element) const {
        return {scope.id, tenant, key(element), element.digest};
    }
};

// There may be more elements than the limit of ordinary allocations allows.
template <class T>
std::span<T> array_of(std::size_t size) {
    void* memory =
        MemoryContextAllocExtended(CurrentMemoryContext, std::max<std::size_t>(size, 1) * sizeof(T),
                                   MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
    return {static_cast<T*>(memory), size};
}

std::span<Datum> checked_keys(ArrayType* array) {
    if (array == nullptr) report::missing_argument("keys");
    if (ARR_NDIM(array) > 1) report::invalid_argument("keys", "The array must have one dimension.");
    Datum* keys = nullptr;
    bool* nulls = nullptr;
    int count = 0;
    deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &keys, &nulls, &count);
    for (int i = 0; i < count; ++i) {
        const auto key =
            nulls[i] ? std::nullopt : std::optional(pg::view_of(DatumGetTextPP(keys[i])));
        (void)checked_element(key, i + 1);
    }
    return {keys, static_cast<std::size_t>(count)};
}

// In the order of the digests. Of equal keys the first in the array comes first.
void sort_by_digest(Batch& batch) {
    batch.order = array_of<Element>(batch.keys.size());
    const MemoryContext scratch =
        AllocSetContextCreate(CurrentMemoryContext, "idem digests", ALLOCSET_DEFAULT_SIZES);
    const MemoryContext before = MemoryContextSwitchTo(scratch);
    for (std::size_t i = 0; i < batch.keys.size(); ++i) {
        Element& element = batch.order[i];
        element.position = static_cast<int>(i);
        element.digest = key_name(batch.scope, batch.tenant, batch.key(element)).digest;
        MemoryContextReset(scratch);
    }
    MemoryContextSwitchTo(before);
    MemoryContextDelete(scratch);
    std::sort(batch.order.begin(), batch.order.end(), [](const Element& a, const Element& b) {
        return a.digest != b.digest ? a.digest < b.digest : a.position < b.position;
    });
}

Batch read_batch(FunctionCallInfo fcinfo) {
    Batch batch{};
    batch.keys = checked_keys(pg::array_arg(fcinfo, arg_keys));
    batch.tenant = checked_tenant(pg::text_arg(fcinfo, arg_tenant));
    const pg::Scope& scope = pg::usable_scope(pg::text_arg(fcinfo, arg_scope), "once_each");
    if (scope.request_required)
        report::invalid_argument("scope",
                                 "The scope requires requests, and idem.once_each() takes none.",
                                 "Call idem.once() with the key and the request of each message.");
    batch.scope = scope;
    batch.is_new = array_of<bool>(batch.keys.size());
    sort_by_digest(batch);
    return batch;
}

Verdict judge(const pg::Found& found, const Batch& batch, TimestampTz now) {
    return core::decide(
        {
            .presence = found.presence,
            .in_snapshot = found.in_snapshot,
            .same_request = true,
            .state = found.record.state,
            .expires = found.record.expires,
            .lease_end = found.record.lease_end.value_or(0),
            .attempt = found.record.attempt,
            .max_attempts = batch.scope.max_attempts,
        },
        now);
}

// A claim whose lease is over is taken over as by an atomic claim: its token is fenced off.
pg::Record record_for(Verdict verdict, const pg::Record& old, const Batch& batch, TimestampTz now) {
    if (verdict == Verdict::take_over)
        return completed_record(old.created, batch.scope.ttl, old.attempt + 1, old.fingerprint);
    return completed_record(now, batch.scope.ttl, first_attempt, nullptr);
}

// What may stand against a new key.
void admit(const Batch& batch, std::string_view key, TimestampTz now) {
    const pg::Scope& scope = batch.scope;
    if (is_out_of_memory(scope, key, now, scope.ttl)) {
        pg::count(scope.id, Counter::stale);
        refuse_out_of_memory(key);
    }
    check_strength(scope, key);
    const std::int64_t wait = charge_claim(scope, batch.tenant, now);
    if (wait <= 0) return;
    pg::count(scope.id, Counter::limited);
    report::too_many_claims_per_minute(scope.name, *scope.claims_per_minute, wait);
}

void count_new(const pg::Scope& scope, Verdict verdict, core::Presence over) {
    const bool is_new = verdict == Verdict::claim;
    pg::count(scope.id, is_new ? Counter::claims : Counter::takeovers);
    pg::count(scope.id, Counter::completions);
    if (is_new && over != core::Presence::absent) pg::count(scope.id, Counter::expired_reused);
}

// Looks until the key is ours, or somebody's for good.
bool take(pg::BulkWriter& writer, const pg::KeyName& name, const Batch& batch) {
    bool admitted = false;
    for (;;) {
        CHECK_FOR_INTERRUPTS();
        const pg::Found found = writer.look(name);
        const TimestampTz now = GetCurrentTimestamp();
        const Verdict verdict = judge(found, batch, now);
        switch (verdict) {
            case Verdict::claim:
                if (!admitted) admit(batch, name.key, now);
                admitted = true;
                [[fallthrough]];
            case Verdict::take_over:
                if (!writer.write(name, record_for(verdict, found.record, batch, now), found))
                    break;
                count_new(batch.scope, verdict, found.presence);
                return true;
            case Verdict::in_flight:
                writer.wait();
                break;
            case Verdict::serialization_failure:
                report::serialization_failure(
                    "A key's record was committed after this transaction's snapshot was taken.");
            case Verdict::leased:
            case Verdict::conflict:
            case Verdict::replay:
            case Verdict::failed:
            case Verdict::exhausted:
                pg::count(batch.scope.id, Counter::replays);
                return false;
        }
    }
}

void refuse_open(const pg::KeyName& name) {
    const pg::Claim* mine = pg::find_claim(name.digest);
    if (mine != nullptr && mine->phase == pg::Phase::open)
        report::claimed_by_this_transaction(
            name.key, "Complete the claim first, or leave the key out of \"keys\".");
}

// How many are new.
std::size_t take_all(Batch& batch) {
    const pg::Records records = pg::Records::to_write();
    pg::BulkWriter writer(records);
    const Element* last = nullptr;
    std::size_t count = 0;
    for (const Element& element : batch.order) {
        const pg::KeyName name = batch.name(element);
        // Digests that agree are no proof that the keys do; two new keys are not in the table yet.
        const bool repeated = last != nullptr && last->digest == element.digest;
        if (repeated && batch.key(*last) != name.key) report::digest_collision();
        if (repeated) continue;
        last = &element;
        refuse_open(name);
        if (!take(writer, name, batch)) continue;
        batch.is_new[static_cast<std::size_t>(element.position)] = true;
        ++count;
    }
    writer.end();
    records.close();
    CommandCounterIncrement();
    return count;
}

// In the order of the array.
void return_new(FunctionCallInfo fcinfo, const Batch& batch) {
    InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
    const auto* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
    bool null = false;
    for (std::size_t i = 0; i < batch.keys.size(); ++i)
        if (batch.is_new[i])
            tuplestore_putvalues(result->setResult, result->setDesc, &batch.keys[i], &null);
}

}  // namespace
}  // namespace idem::api

IDEM_FUNCTION(idem_once_each) {
    using namespace idem;
    api::require_writable("idem.once_each()", api::read_by_lookup);
    api::Batch batch = api::read_batch(fcinfo);
    if (api::take_all(batch) > 0) pg::remember_unlocked(batch.scope.name);
    api::return_new(fcinfo, batch);
    return Datum{0};
}
