#include "pg/store/due_queue.hpp"

namespace idem::pg {
namespace {

constexpr std::size_t list_size = 1024;
constexpr std::int64_t list_lifetime = USECS_PER_SEC;

// What the last search of this session has found.
struct DueList {
    TimestampTz at = 0;  // 0: no search has ended
    DueFilter filter{};  // its tenant points to the copy
    std::array<char, core::max_tenant_bytes> tenant{};
    TransactionId taken_by = InvalidTransactionId;  // that took from it last
    std::size_t size = 0;
    std::size_t next = 0;
    std::array<Due, list_size> due{};
};
constinit DueList list{};

bool is_list_of(const DueFilter& filter, TimestampTz now) {
    return list.at <= now && now - list.at <= list_lifetime && list.filter == filter;
}

// Whether the (sub)transaction that took from the list has ended, and not by a commit.
bool was_rolled_back(TransactionId taker) {
    return TransactionIdIsValid(taker) && !TransactionIdIsCurrentTransactionId(taker) &&
           !TransactionIdDidCommit(taker);
}

void begin_list(const DueFilter& filter) {
    list.at = 0;
    list.next = list.size = 0;
    list.filter = filter;
    if (!filter.tenant) return;
    Assert(filter.tenant->size() <= list.tenant.size());
    std::ranges::copy(*filter.tenant, list.tenant.begin());
    list.filter.tenant = {list.tenant.data(), filter.tenant->size()};
}

// While a search is under way, the list is a heap with the youngest operation at its top. Returns
// false if an operation did not fit.
bool add_to_heap(const Due& due) {
    auto* const begin = list.due.data();
    const bool fits = list.size < list_size;
    if (!fits && !(due < *begin)) return false;
    if (!fits) std::pop_heap(begin, begin + list.size--);
    list.due[list.size++] = due;
    std::push_heap(begin, begin + list.size);
    return fits;
}

// Whether the operation is due, or will be.
bool is_wanted(const Record& row, const DueFilter& filter, TimestampTz now) {
    if (filter.tenant && row.tenant() != *filter.tenant) return false;
    const bool lapsed = row.lease_end().value_or(0) <= now;
    return row.expires() > now &&
           !(lapsed &&
             core::is_last_attempt(row.attempt(), filter.max_attempts, row.extra_attempts()));
}

}  // namespace

DueQueue::DueQueue(const DueFilter& filter) : filter_(filter) {
    // The status of a transaction of long ago may be gone, so the age of the list comes first.
    const bool usable =
        is_list_of(filter, GetCurrentTimestamp()) && !was_rolled_back(list.taken_by);
    if (!usable) list.next = list.size;
    if (!TransactionIdIsCurrentTransactionId(list.taken_by)) list.taken_by = InvalidTransactionId;
}

std::optional<Due> DueQueue::next() {
    while (list.next == list.size) {
        if (searched_ && !has_more_) return std::nullopt;
        search(searched_ ? last_ : std::nullopt);
    }
    last_ = list.due[list.next++];
    return last_;
}

void DueQueue::note_taken() {
    list.taken_by = GetCurrentTransactionId();
}

void DueQueue::search(const std::optional<Due>& after) {
    const TimestampTz now = GetCurrentTimestamp();
    searched_ = true;
    has_more_ = false;
    next_due_ = DT_NOEND;
    begin_list(filter_);
    const Records records(filter_.table, Access::read);
    for_each_unfinished(records.table(), filter_.scope_id, [&, this](const Record& row) {
        const Due due{row.lease_end().value_or(0), row.digest()};
        if (!is_wanted(row, filter_, now)) return true;
        if (due.since > now)
            next_due_ = std::min(next_due_, due.since);
        else if ((!after || *after < due) && !add_to_heap(due))
            has_more_ = true;
        return true;
    });
    records.close();
    std::sort_heap(list.due.data(), list.due.data() + list.size);
    list.at = now;
}

}  // namespace idem::pg
