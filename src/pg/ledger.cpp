#include "pg/ledger.hpp"

#include "pg/hash_table.hpp"
#include "pg/tenant_table.hpp"

namespace idem::pg {
namespace {

// Where the sweep is. Rows up to `counted` have been counted. All blocks before `next` were read,
// and those before `reading` may be read just now.
struct Round {
    Oid file;  // of the table with `next`: rows change their places when it is rewritten
    RecordBlock next;
    RecordBlock reading;
    RecordBlock end = every_block;  // a step that runs reads no block of this table from here on
    CountedRow counted;
    bool broken;  // a part of the tables was not read, or not since the round began

    // For all rows from the first to the last block. A step that is repeated, or ends within a
    // block, does not count again what was counted.
    bool will_count(RecordBlock first, RecordBlock last) const {
        return first >= reading && (last < end || table_of(first) > table_of(end)) &&
               (counted.offset == 0 || first > counted.block);
    }
};

struct Account {
    std::int64_t known;    // by the last full round
    std::int64_t counted;  // by this round, so far
    std::int64_t carried;  // committed during the last round, which missed it
    std::int64_t ahead;    // committed during this round, which will count it
    std::int64_t behind;   // committed during this round, which misses it
    std::int64_t pending;  // written by transactions that run
    Round round;           // in the account of the database only
};

using Accounts = TenantTable<Account>;
static_assert(ledger_locks == Accounts::partitions);

// No scope has this id.
constexpr std::int32_t whole_database = 0;

// What this transaction has written, by the number of the account. An account with something
// pending is not removed.
struct Growth {
    std::uint32_t account;  // the hash key
    std::int64_t bytes;
    RecordBlock first;  // of the blocks that have them
    RecordBlock last;
};

constinit Accounts accounts{};
constinit HashTable<std::uint32_t, Growth> mine{};
constinit bool has_growth = false;
constinit bool follows_transactions = false;

std::int64_t stored(const Account& account) {
    return account.known + account.carried + account.ahead + account.behind + account.pending;
}

bool is_empty(const Account& account) {
    return stored(account) == 0 && account.counted == 0 && account.pending == 0;
}

// Calls use(account) under the account's lock and returns the account's number. none: there is no
// such account, or with `open` none is free.
enum class Missing : bool { leave, open };

template <class Use>
std::uint32_t with_account(std::int32_t scope_id, std::string_view tenant, Missing missing,
                           Use use) {
    const TenantKey key = accounts.key(scope_id, tenant);
    LWLockAcquire(accounts.lock_of(key), LW_EXCLUSIVE);
    std::uint32_t account = accounts.find(key);
    if (account == Accounts::none && missing == Missing::open) account = accounts.add(key);
    if (account != Accounts::none) use(accounts.value(account));
    LWLockRelease(accounts.lock_of(key));
    return account;
}

// Without a round the accounts would never be corrected, so there is none without it.
bool has_round() {
    const auto leave = [](const Account&) {};
    return with_account(whole_database, {}, Missing::open, leave) != Accounts::none;
}

template <class Use>
std::uint32_t with_account_or_new(std::int32_t scope_id, std::string_view tenant, Use use) {
    Assert(scope_id > whole_database);
    const std::uint32_t account = with_account(scope_id, tenant, Missing::leave, use);
    if (account != Accounts::none || !has_round()) return account;
    return with_account(scope_id, tenant, Missing::open, use);
}

template <class Use>
bool with_round(Use use) {
    return with_account(whole_database, {}, Missing::leave,
                        [&use](Account& account) { use(account.round); }) != Accounts::none;
}

Round read_round() {
    const TenantKey key = accounts.key(whole_database, {});
    LWLockAcquire(accounts.lock_of(key), LW_SHARED);
    const std::uint32_t account = accounts.find(key);
    const Round round = account == Accounts::none ? Round{} : accounts.value(account).round;
    LWLockRelease(accounts.lock_of(key));
    return round;
}

// A prepared transaction is not visible yet, so the round may miss its rows. The process that will
// commit it does not know what it has written.
void settle_growth(XactEvent event) {
    const Round round = read_round();
    mine.for_each([event, &round](const Growth& growth) {
        if (growth.bytes == 0) return;
        LWLock* lock = accounts.lock_of(growth.account);
        LWLockAcquire(lock, LW_EXCLUSIVE);
        Account& account = accounts.value(growth.account);
        Assert(account.pending >= growth.bytes);
        account.pending -= growth.bytes;
        const bool ahead =
            event == XACT_EVENT_COMMIT && round.will_count(growth.first, growth.last);
        if (event != XACT_EVENT_ABORT) (ahead ? account.ahead : account.behind) += growth.bytes;
        LWLockRelease(lock);
    });
}

extern "C" {

static void at_ledger_transaction_end(XactEvent event, void*) {
    if (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT && event != XACT_EVENT_PREPARE)
        return;
    if (has_growth) settle_growth(event);
    has_growth = false;
}
}

Growth& growth_of(std::uint32_t account) {
    if (!follows_transactions) RegisterXactCallback(at_ledger_transaction_end, nullptr);
    follows_transactions = true;
    if (!has_growth) mine.create("idem growth", 16, TopTransactionContext);
    has_growth = true;
    bool found;
    Growth* growth = mine.enter(account, found);
    if (!found) *growth = {account, 0, every_block, 0};
    return *growth;
}

void end_round(Account& account, bool broken) {
    if (broken) {
        account.behind += account.ahead;
    } else {
        account.known = account.counted;
        account.carried = std::exchange(account.behind, 0);
    }
    account.ahead = 0;
    account.counted = 0;
}

void end_round(bool broken) {
    for (std::uint32_t i = 0; i < Accounts::partitions; ++i)
        accounts.prune(i, [broken](Oid database, std::int32_t scope_id, Account& account) {
            if (database != MyDatabaseId || scope_id == whole_database) return false;
            end_round(account, broken);
            return is_empty(account);
        });
}

}  // namespace

bool ledger_available() {
    return accounts.available();
}

std::optional<std::int64_t> stored_bytes(std::int32_t scope_id, std::string_view tenant) {
    std::int64_t bytes = 0;
    const std::uint32_t account = with_account_or_new(
        scope_id, tenant, [&bytes](const Account& known) { bytes = stored(known); });
    return account == Accounts::none ? std::nullopt : std::optional(bytes);
}

namespace {

// False if the number is not that of the tenant's account any more.
bool add_pending(const TenantKey& key, std::uint32_t account, std::int64_t bytes) {
    LWLockAcquire(accounts.lock_of(key), LW_EXCLUSIVE);
    const bool same = accounts.find(key) == account;
    if (same) accounts.value(account).pending += bytes;
    LWLockRelease(accounts.lock_of(key));
    return same;
}

}  // namespace

// The local note comes first: it may fail, and what is pending must not be forgotten. A round that
// ends in between removes an account that is empty.
void note_growth(std::int32_t scope_id, std::string_view tenant, RecordBlock block,
                 std::int64_t bytes) {
    Assert(bytes >= 0 && IsTransactionState());
    if (!accounts.available() || bytes == 0) return;
    std::uint32_t number = Accounts::none;
    do {
        number = with_account_or_new(scope_id, tenant, [](const Account&) {});
        if (number == Accounts::none) return;  // the next round counts the row
        (void)growth_of(number);
    } while (!add_pending(accounts.key(scope_id, tenant), number, bytes));
    Growth& growth = growth_of(number);
    growth.bytes += bytes;
    growth.first = std::min(growth.first, block);
    growth.last = std::max(growth.last, block);
}

namespace {

// Only the table that was read in part matters: a row of any other that moves is still among those
// that were all read, or among those that were not.
bool was_rewritten(const Round& round, RecordBlock first, Oid file) {
    return number_of(round.next) > 0 && table_of(round.next) == table_of(first) &&
           round.file != file;
}

}  // namespace

void begin_count(Relation records, RecordBlock first, RecordBlock end) {
    if (!accounts.available()) return;
    Assert(table_of(first) == table_of(end));
    const Oid file = records->rd_rel->relfilenode;
    (void)with_round([=](Round& round) {
        const bool unknown = !OidIsValid(round.file);
        if (unknown ? first > 0 : first > round.next || was_rewritten(round, first, file))
            round.broken = true;
        round.file = file;
        round.next = round.reading = first;
        round.end = end;
    });
}

void miss_rows() {
    if (!accounts.available()) return;
    (void)with_round([](Round& round) { round.broken = true; });
}

void begin_reading(RecordBlock until) {
    if (!accounts.available()) return;
    (void)with_round([until](Round& round) { round.reading = until; });
}

void count_row(std::int32_t scope_id, std::string_view tenant, const CountedRow& row,
               std::int64_t bytes) {
    Assert(accounts.available() && bytes > 0 && row.offset != InvalidOffsetNumber);
    bool is_new = false;
    const bool counts = with_round([&](Round& round) {
        is_new = row.is_after(round.counted);
        if (is_new) round.counted = row;
    });
    const auto add = [bytes](Account& account) { account.counted += bytes; };
    if (is_new) (void)with_account_or_new(scope_id, tenant, add);
    if (!counts) (void)has_round();  // the next one counts
}

void end_reading(RecordBlock next) {
    if (!accounts.available()) return;
    bool broken = false;
    const bool counts = with_round([&](Round& round) {
        broken = round.broken;
        round.next = next;
        if (next == 0) round.counted = {};
        if (next == 0) round.broken = false;
    });
    if (counts && next == 0) end_round(broken);
    (void)with_round([next](Round& round) { round.reading = next; });
}

void end_count() {
    if (!accounts.available()) return;
    (void)with_round([](Round& round) { round.end = every_block; });
}

void close_accounts(Oid database) {
    if (!accounts.available()) return;
    for (std::uint32_t i = 0; i < Accounts::partitions; ++i)
        accounts.prune(i, [database](Oid of, std::int32_t, const Account& account) {
            return of == database && account.pending == 0;
        });
}

Size ledger_size() {
    return Accounts::size();
}

void attach_ledger(void* memory, LWLockPadded* locks, bool found) {
    accounts.attach(memory, locks, found);
}

}  // namespace idem::pg
