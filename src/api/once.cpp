// idem.once() and idem.once_each(), for consumers that may see a message more than once: each
// claims and completes in one call, and tells whether a key is new. No answer is stored.
//
// once() takes the locks of claim() and complete().
//
// once_each() serves tens of thousands of keys in one call, so it takes no key locks: the unique
// index alone keeps concurrent calls apart (see pg/store/record). It waits for other transactions
// as a unique index does, within the session's timeouts and not within the scope's bound. A key
// with a live record is not new, whatever the record holds: once_each() does not compare requests
// and does not raise stored failures.
#include "api/admission.hpp"
#include "api/arguments.hpp"
#include "api/claim.hpp"
#include "api/finish.hpp"
#include "api/locked_key.hpp"
#include "pg/shared/stats.hpp"
#include "pg/store/record.hpp"

namespace idem::api {
namespace {

using core::Verdict;

struct Element {
    core::Digest digest;
    int position;  // in the array, from 0

    bool operator<(const Element& other) const {
        return digest == other.digest ? position < other.position : digest < other.digest;
    }
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

    std::string_view text_at(const Element& element) const {
        return pg::view_of(DatumGetTextPP(texts[static_cast<std::size_t>(element.position)]));
    }
    pg::Key key(const Element& element) const {
        return {scope.id, tenant, text_at(element), element.digest, table};
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
    const auto [keys, nulls] = pg::elements_of(array);
    batch.keys = batch.texts = keys;
    if (type != TEXTOID) batch.texts = array_of<Datum>(keys.size());
    for (std::size_t i = 0; i < keys.size(); ++i) {
        CHECK_FOR_INTERRUPTS();  // here and below: there may be tens of millions
        Datum& key = batch.texts[i];
        if (type != TEXTOID && !nulls[i]) key = PointerGetDatum(key_text(keys[i], type, "keys"));
        (void)checked_key(nulls[i] ? std::nullopt : std::optional(pg::view_of(DatumGetTextPP(key))),
                          static_cast<int>(i) + 1);
    }
}

// Of equal keys, the first in the array stays first.
void sort_by_digest(Batch& batch) {
    batch.order = array_of<Element>(batch.keys.size());
    const MemoryContext scratch =
        AllocSetContextCreate(CurrentMemoryContext, "idem digests", ALLOCSET_DEFAULT_SIZES);
    const MemoryContext before = MemoryContextSwitchTo(scratch);
    for (std::size_t i = 0; i < batch.keys.size(); ++i) {
        CHECK_FOR_INTERRUPTS();
        Element& element = batch.order[i];
        element.position = static_cast<int>(i);
        element.digest = key_of(batch.scope, batch.tenant, batch.text_at(element)).digest;
        MemoryContextReset(scratch);
    }
    MemoryContextSwitchTo(before);
    MemoryContextDelete(scratch);
    std::sort(batch.order.begin(), batch.order.end());
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

void check_new_element(const Batch& batch, std::string_view key, TimestampTz now) {
    if (batch.scope.request_required)
        report::invalid_argument("scope",
                                 "The scope requires requests, and idem.once_each() takes none.",
                                 "Call idem.once() with the key and the request of each message.");
    check_new_key(batch.scope, batch.tenant, key, now);
}

// In the memory of this key, as the batch may be long. An attempt whose lease has ended is taken
// over, as an atomic claim does it: the token of the old attempt is fenced off.
bool write_new(pg::BulkWriter& writer, const pg::Key& key, Verdict verdict, const pg::Found& found,
               const Batch& batch, TimestampTz now, pg::WaitBound& bound) {
    const MemoryContext before = MemoryContextSwitchTo(writer.memory());
    const bool over = verdict == Verdict::take_over;
    const pg::Record& old = found.record;
    const pg::NewRecord record = completed_record(key, over ? old.created() : now, batch.scope.ttl,
                                                  over ? old.attempt() + 1 : core::first_attempt,
                                                  over ? old.fingerprint() : nullptr);
    MemoryContextSwitchTo(before);
    const pg::ChangeResult written = writer.write(record, found, bound);
    check_written(key.key, written, bound);
    return written.result == TM_Ok;
}

// Whether the key is new; if so, its record is written. Looks at the key until that is decided.
bool finish_if_new(pg::BulkWriter& writer, const pg::Key& key, const Batch& batch) {
    bool admitted = false;
    for (;;) {
        CHECK_FOR_INTERRUPTS();
        pg::WaitBound bound = pg::WaitBound::none();  // each wait is one of its own
        const pg::Found found = writer.look(key);
        const TimestampTz now = GetCurrentTimestamp();
        const Verdict verdict =
            core::decide(found_row(found, batch.scope), core::SameRequest::yes, now);
        switch (verdict) {
            case Verdict::claim:
                if (!admitted) check_new_element(batch, key.key, now);
                admitted = true;
                [[fallthrough]];
            case Verdict::take_over:
                if (!write_new(writer, key, verdict, found, batch, now, bound)) break;
                count_claim(batch.scope, key, found, verdict);
                pg::count(batch.scope.id, pg::Counter::completions);
                if (verdict == Verdict::take_over) pg::wake_at_commit(pg::key_event(key.digest));
                return true;
            case Verdict::in_flight:
                if (!writer.wait(bound))
                    refuse_in_flight(key.key, pg::holder_of(found.writer.xid), bound);
                break;
            case Verdict::serialization_failure:
                refuse_unseen();
            case Verdict::leased:
            case Verdict::conflict:
            case Verdict::replay:
            case Verdict::failed:
            case Verdict::exhausted:
                pg::count(batch.scope.id, pg::Counter::replays);
                count_if_late(batch.scope.id, found.record);
                return false;
        }
    }
}

std::size_t finish_new_keys(Batch& batch) {
    const pg::Records records(batch.table, pg::Access::write);
    pg::check_place(batch.scope.id, batch.table);
    pg::BulkWriter writer(records);
    const Element* last = nullptr;
    std::size_t count = 0;
    for (const Element& element : batch.order) {
        const pg::Key key = batch.key(element);
        // Equal digests do not prove that the keys are equal, and a key that is new in this call
        // cannot be compared with the table.
        const bool repeated = last != nullptr && last->digest == element.digest;
        if (repeated && batch.text_at(*last) != key.key) report::digest_collision();
        if (repeated) continue;
        last = &element;
        if (is_open_here(key.digest))
            report::claimed_by_this_transaction(
                key.key, "Complete the claim first, or leave the key out of \"keys\".");
        if (!finish_if_new(writer, key, batch)) continue;
        batch.is_new[static_cast<std::size_t>(element.position)] = true;
        ++count;
    }
    writer.end();
    records.close();
    CommandCounterIncrement();
    return count;
}

}  // namespace

IDEM_FUNCTION(idem_once) {
    require_writable("once", read_by_lookup);
    const KeyCall key_call = read_key(fcinfo, 3, "once");
    ClaimCall call{key_call, pg::jsonb_arg(fcinfo, 2), key_call.scope->ttl, key_call.scope->wait};
    call.completes = true;
    const ClaimResult result = claim_key(call);
    if (result.outcome == Outcome::completed) PG_RETURN_BOOL(false);
    if (result.outcome != Outcome::claimed) refuse_claim(call, result);
    (void)finish_atomic(*result.claim, {.state = core::State::completed, .timed = false});
    PG_RETURN_BOOL(true);
}

IDEM_FUNCTION(idem_once_each) {
    require_writable("once_each", read_by_lookup);
    Batch batch = read_batch(fcinfo);
    if (finish_new_keys(batch) > 0) pg::remember_unlocked(batch.scope.name);
    InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
    const auto* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
    bool null = false;
    for (std::size_t i = 0; i < batch.keys.size(); ++i) {
        CHECK_FOR_INTERRUPTS();
        if (batch.is_new[i])
            tuplestore_putvalues(result->setResult, result->setDesc, &batch.keys[i], &null);
    }
    return Datum{0};
}

}  // namespace idem::api
