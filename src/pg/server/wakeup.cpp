#include "pg/server/wakeup.hpp"

namespace idem::pg {
namespace {

// The slots are numbered like the processes in ProcGlobal->allProcs. They lie close together: only
// waiters write them, and a waker reads them all.
struct Slots {
    pg_atomic_uint32 announced;  // how many slots have an event
    pg_atomic_uint64 events[FLEXIBLE_ARRAY_MEMBER];
};

constexpr Event no_event = 0;

// The events of one transaction. A transaction that ends more leases than this wakes every waiter.
constexpr std::size_t max_noted = 32;

constinit Slots* slots = nullptr;
constinit Event announced = no_event;  // in this backend's slot
constinit std::array<Event, max_noted> noted{};
constinit std::size_t notes = 0;  // max_noted + 1: more than fit

Event event_of(std::uint64_t subject, std::uint32_t kind) {
    const Event event =
        hash_combine64(subject, (static_cast<std::uint64_t>(MyDatabaseId) << 32) | kind);
    return event == no_event ? Event{1} : event;
}

bool is_noted(Event event) {
    if (notes > max_noted) return true;
    const auto end = noted.begin() + static_cast<std::ptrdiff_t>(notes);
    return std::find(noted.begin(), end, event) != end;
}

void wake_waiters() {
    // The commit is visible before the slots are read.
    pg_memory_barrier();
    if (pg_atomic_read_u32(&slots->announced) == 0) return;
    for (int i = 0; i < MaxBackends; ++i) {
        const Event event = pg_atomic_read_u64(&slots->events[i]);
        if (event != no_event && is_noted(event)) SetLatch(&ProcGlobal->allProcs[i].procLatch);
    }
}

pg_atomic_uint64& my_event() {
    return slots->events[backend_number()];
}

}  // namespace

Event key_event(const core::Digest& digest) {
    std::uint64_t subject;
    memcpy(&subject, digest.data(), sizeof subject);
    return event_of(subject, 0);
}

Event scope_event(std::int32_t scope_id) {
    return event_of(static_cast<std::uint64_t>(scope_id), 1);
}

bool announce_wait(Event event) {
    Assert(event != no_event && IsTransactionState());
    if (slots == nullptr || announced == event) return false;
    // Both are full barriers: the caller's next look comes after them.
    (void)pg_atomic_exchange_u64(&my_event(), event);
    if (announced == no_event) pg_atomic_fetch_add_u32(&slots->announced, 1);
    announced = event;
    return true;
}

void withdraw_wait() {
    if (announced == no_event) return;
    Assert(pg_atomic_read_u64(&my_event()) == announced);
    pg_atomic_write_u64(&my_event(), no_event);
    [[maybe_unused]] const std::uint32_t before = pg_atomic_fetch_sub_u32(&slots->announced, 1);
    Assert(before > 0);
    announced = no_event;
}

void wake_at_commit(Event event) {
    if (slots == nullptr || is_noted(event)) return;
    if (notes < max_noted) noted[notes] = event;
    ++notes;
}

void end_waits(bool committed) {
    withdraw_wait();
    if (notes > 0 && committed) wake_waiters();
    notes = 0;
}

int announced_waits() {
    return slots == nullptr ? 0 : static_cast<int>(pg_atomic_read_u32(&slots->announced));
}

Size wakeup_size() {
    return add_size(offsetof(Slots, events),
                    mul_size(sizeof(pg_atomic_uint64), static_cast<Size>(MaxBackends)));
}

void attach_wakeup(void* memory, LWLockPadded*, bool found) {
    slots = static_cast<Slots*>(memory);
    if (found) return;
    pg_atomic_init_u32(&slots->announced, 0);
    for (int i = 0; i < MaxBackends; ++i) pg_atomic_init_u64(&slots->events[i], no_event);
}

}  // namespace idem::pg
