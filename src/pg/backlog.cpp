#include "pg/backlog.hpp"

#include "core/decision.hpp"
#include "core/key.hpp"

namespace idem::pg {
namespace {

constexpr std::size_t list_size = 1024;
constexpr std::int64_t list_lifetime = USECS_PER_SEC;

// The list of this session, and what it was searched for.
struct List {
    TimestampTz searched = 0;  // 0: there is no list
    DueFilter filter{};        // its tenant points to the copy
    std::array<char, core::max_tenant_bytes> tenant{};
    std::size_t size = 0;
    std::size_t next = 0;
    std::array<Due, list_size> due{};
};
constinit List list{};
constinit bool follows_transactions = false;

void forget_list() {
    list.searched = 0;
    list.size = 0;
    list.next = 0;
}

void at_transaction_end(XactEvent event, void*) {
    if (event == XACT_EVENT_ABORT) forget_list();
}

void at_subtransaction_end(SubXactEvent event, SubTransactionId, SubTransactionId, void*) {
    if (event == SUBXACT_EVENT_ABORT_SUB) forget_list();
}

void follow_transactions() {
    if (follows_transactions) return;
    RegisterXactCallback(at_transaction_end, nullptr);
    RegisterSubXactCallback(at_subtransaction_end, nullptr);
    follows_transactions = true;
}

bool is_list_of(const DueFilter& filter, TimestampTz now) {
    return list.searched <= now && now - list.searched <= list_lifetime && list.filter == filter;
}

void begin_list(const DueFilter& filter, TimestampTz now) {
    forget_list();
    list.searched = now;
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
    if (list.size < list_size) {
        list.due[list.size++] = due;
        std::push_heap(begin, begin + list.size);
        return true;
    }
    if (due < *begin) {
        std::pop_heap(begin, begin + list.size);
        list.due[list.size - 1] = due;
        std::push_heap(begin, begin + list.size);
    }
    return false;
}

// Whether the operation is due, or will be.
bool is_wanted(const RecordRow& row, const DueFilter& filter, TimestampTz now) {
    if (filter.tenant && row.tenant() != *filter.tenant) return false;
    return row.expires() > now &&
           !core::exhausted(row.attempt(), filter.max_attempts, row.extra_attempts(),
                            row.lease_end().value_or(0), now);
}

}  // namespace

Backlog::Backlog(const DueFilter& filter) : filter_(filter) {
    follow_transactions();
    if (!is_list_of(filter, GetCurrentTimestamp())) forget_list();
}

std::optional<Due> Backlog::next() {
    if (list.next == list.size) return std::nullopt;
    return list.due[list.next++];
}

void Backlog::search(const std::optional<Due>& after) {
    const TimestampTz now = GetCurrentTimestamp();
    has_more_ = false;
    next_due_ = std::nullopt;
    begin_list(filter_, now);
    const Records records = Records::to_read(filter_.table);
    UnfinishedSearch search(records, filter_.scope_id);
    while (const auto row = search.next()) {
        const Due due{row->lease_end().value_or(0), row->digest()};
        if (!is_wanted(*row, filter_, now)) continue;
        if (due.since > now)
            next_due_ = std::min(next_due_.value_or(due.since), due.since);
        else if ((!after || *after < due) && !add_to_heap(due))
            has_more_ = true;
    }
    search.end();
    records.close();
    std::sort_heap(list.due.data(), list.due.data() + list.size);
}

}  // namespace idem::pg
