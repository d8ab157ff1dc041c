// idem.once() and idem.once_each(), for consumers that may see a message more than once: each
// claims and completes in one call, and tells whether a key is new. No answer is stored.
//
// once() takes the locks of claim() and complete().
//
// once_each() serves tens of thousands of keys in one call, so it takes no key locks: the unique
// index alone keeps concurrent calls apart (see pg/record). It writes the keys in the order of
// their digests, whatever their order in the array, so that calls do not deadlock with each other.
// It waits for other transactions as a unique index does, not within the scope's bound. An atomic
// claim in flight has no row yet, so once_each() does not wait for it; that claim gets 40001 when
// it completes. A key with a live record is not new, whatever the record holds: once_each() does
// not compare requests and does not raise stored failures.
#include "api/admission.hpp"
#include "api/arguments.hpp"
#include "api/claim.hpp"
#include "api/finish.hpp"
#include "api/locked_key.hpp"
#include "pg/record.hpp"
#include "pg/report.hpp"
#include "pg/stats.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;
using core::Verdict;
using pg::Counter;

// ---- once() -------------------------------------------------------------------------------------

bool once(FunctionCallInfo fcinfo) {
    ClaimCall call = make_claim_call(read_key(fcinfo, 3, "once"), pg::jsonb_arg(fcinfo, 2),
                                     std::nullopt, std::nullopt);
    call.writes_at_once = true;
    call.wait_set_by = report::WaitSetBy::scope;
    const ClaimResult result = claim_key(call);
    switch (result.outcome) {
        case Outcome::claimed:
            (void)finish_atomic(*result.claim, {.state = core::State::completed, .timed = false});
            return true;
        case Outcome::completed:
            return false;
        default:
            refuse(call, result);
    }
}

// ---- once_each() --------------------------------------------------------------------------------

struct Element {
    core::Digest digest;
    int position;  // in the array, from 0
};

// Lives as long as the call. Beside the array itself, it needs a few bytes per key, and the text of
// a key that is a uuid.
struct Batch {
    std::span<Datum> keys;     // as in the array
    std::span<Datum> texts;    // the same as text
    std::span<Element> order;  // by digest
    std::span<bool> is_new;    // as in the array
    pg::Scope scope;           // a copy: the cache may be dropped while rows are written
    std::string_view tenant;
    Oid table;  // where the records are

    std::string_view key(const Element& element) const {
        return pg::view_of(DatumGetTextPP(texts[static_cast<std::size_t>(element.position)]));
    }
    pg::KeyName name(const Element& element) const {
        return {scope.id, tenant, key(element), element.digest, table};
    }
};

// The elements may exceed the size limit of ordinary allocations.
template <class T>
std::span<T> array_of(std::size_t size) {
    void* memory =
        MemoryContextAllocExtended(CurrentMemoryContext, std::max<std::size_t>(size, 1) * sizeof(T),
                                   MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
    return {static_cast<T*>(memory), size};
}

void read_keys(ArrayType* array, Batch& batch) {
    if (array == nullptr) report::missing_argument("keys");
    if (ARR_NDIM(array) > 1)
        report::invalid_argument("keys", "The array must have one dimension.",
                                 "Pass the keys as ARRAY['order-1', 'order-2'].");
    const Oid type = ARR_ELEMTYPE(array);
    std::int16_t length;
    bool by_value;
    char align;
    get_typlenbyvalalign(type, &length, &by_value, &align);
    Datum* keys = nullptr;
    bool* nulls = nullptr;
    int count = 0;
    deconstruct_array(array, type, length, by_value, align, &keys, &nulls, &count);
    batch.keys = batch.texts = {keys, static_cast<std::size_t>(count)};
    if (type != TEXTOID) batch.texts = array_of<Datum>(batch.keys.size());
    for (int i = 0; i < count; ++i) {
        Datum& key = batch.texts[static_cast<std::size_t>(i)];
        if (type != TEXTOID && !nulls[i]) key = PointerGetDatum(key_text(keys[i], type));
        (void)checked_key(nulls[i] ? std::nullopt : std::optional(pg::view_of(DatumGetTextPP(key))),
                          i + 1);
    }
}

// Of equal keys, the first in the array stays first.
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
    read_keys(pg::array_arg(fcinfo, arg_key), batch);
    const std::string_view tenant = checked_tenant(pg::text_arg(fcinfo, 2));
    const pg::Scope& scope = pg::usable_scope(pg::text_arg(fcinfo, arg_scope), "once_each");
    batch.scope = scope;
    batch.tenant = tenant_in(scope, tenant);
    batch.table = pg::records_of(scope);
    batch.is_new = array_of<bool>(batch.keys.size());
    sort_by_digest(batch);
    return batch;
}

// An attempt whose lease has ended is taken over, as an atomic claim does it: the token of the old
// attempt is fenced off.
pg::Record new_record(Verdict verdict, const pg::Record& old, const Batch& batch, TimestampTz now) {
    if (verdict == Verdict::take_over)
        return completed_record(old.created, batch.scope.ttl, old.attempt + 1, old.fingerprint);
    return completed_record(now, batch.scope.ttl, core::first_attempt, nullptr);
}

void note_new(const pg::KeyName& name, const Batch& batch, Verdict verdict,
              const pg::Found& found) {
    const bool taken_over = verdict == Verdict::take_over;
    pg::count(batch.scope.id, taken_over ? Counter::takeovers : Counter::claims);
    pg::count(batch.scope.id, Counter::completions);
    if (!taken_over && found.presence != core::Presence::absent)
        pg::count(batch.scope.id, Counter::expired_reused);
    if (!taken_over) return;
    log_takeover(batch.scope, name, found.record);
    pg::wake_at_commit(pg::key_event(name.digest));
}

void check_new_element(const Batch& batch, std::string_view key, TimestampTz now) {
    if (batch.scope.request_required)
        report::invalid_argument("scope",
                                 "The scope requires requests, and idem.once_each() takes none.",
                                 "Call idem.once() with the key and the request of each message.");
    check_new_key(batch.scope, batch.tenant, key, now);
}

// Whether the key is new; if so, its record is written. Looks at the key until that is decided.
bool finish_if_new(pg::BulkWriter& writer, const pg::KeyName& name, const Batch& batch) {
    bool admitted = false;
    for (;;) {
        CHECK_FOR_INTERRUPTS();
        const pg::Found found = writer.look(name);
        const TimestampTz now = GetCurrentTimestamp();
        const Verdict verdict = judge(found, true, batch.scope, now);
        switch (verdict) {
            case Verdict::claim:
                if (!admitted) check_new_element(batch, name.key, now);
                admitted = true;
                [[fallthrough]];
            case Verdict::take_over:
                if (!writer.write(name, new_record(verdict, found.record, batch, now), found))
                    break;
                note_new(name, batch, verdict, found);
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
                pg::count(batch.scope.id, pg::Counter::replays);
                return false;
        }
    }
}

void refuse_open(const pg::KeyName& name) {
    if (is_open_here(name.digest))
        report::claimed_by_this_transaction(
            name.key, "Complete the claim first, or leave the key out of \"keys\".");
}

// Returns how many keys are new.
std::size_t finish_new_keys(Batch& batch) {
    const pg::Records records = pg::Records::to_write(batch.table);
    pg::check_place(batch.scope.id, batch.table);
    pg::BulkWriter writer(records);
    const Element* last = nullptr;
    std::size_t count = 0;
    for (const Element& element : batch.order) {
        const pg::KeyName name = batch.name(element);
        // Equal digests do not prove that the keys are equal, and a key that is new in this call
        // cannot be compared with the table.
        const bool repeated = last != nullptr && last->digest == element.digest;
        if (repeated && batch.key(*last) != name.key) report::digest_collision();
        if (repeated) continue;
        last = &element;
        refuse_open(name);
        if (!finish_if_new(writer, name, batch)) continue;
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

IDEM_FUNCTION(idem_once) {
    using namespace idem;
    api::require_writable("idem.once()", api::read_by_lookup);
    PG_RETURN_BOOL(api::once(fcinfo));
}

IDEM_FUNCTION(idem_once_each) {
    using namespace idem;
    api::require_writable("idem.once_each()", api::read_by_lookup);
    api::Batch batch = api::read_batch(fcinfo);
    if (api::finish_new_keys(batch) > 0) pg::remember_unlocked(batch.scope.name);
    api::return_new(fcinfo, batch);
    return Datum{0};
}
