#include "pg/ledger.hpp"

#include "pg/hash_table.hpp"
#include "pg/tenant_table.hpp"

namespace idem::pg {
namespace {

// Where the sweep is. Rows up to `counted` have been counted; all blocks before `next` were read.
struct Round {
    Oid file;  // of the table: rows change their places when it is rewritten
    BlockNumber next;
    ItemPointerData counted;
    bool broken;  // a part of the table was not read, or not since the round began
};

struct Account {
    std::int64_t known;        // by the last full round
    std::int64_t counted;      // by this round, so far
    std::int64_t last_growth;  // committed during the last full round
    std::int64_t growth;       // committed since
    std::int64_t pending;      // written by transactions that run
    Round round;               // in the account of the database only
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
};

constinit Accounts accounts{};
constinit HashTable<std::uint32_t, Growth> mine{};
constinit bool has_growth = false;
constinit bool follows_transactions = false;

std::int64_t stored(const Account& account) {
    return account.known + account.last_growth + account.growth + account.pending;
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

// The other process that ends a transaction of two phases does not know what it has written.
void settle_growth(bool committed) {
    mine.for_each([committed](const Growth& growth) {
        if (growth.bytes == 0) return;
        LWLock* lock = accounts.lock_of(growth.account);
        LWLockAcquire(lock, LW_EXCLUSIVE);
        Account& account = accounts.value(growth.account);
        Assert(account.pending >= growth.bytes);
        account.pending -= growth.bytes;
        if (committed) account.growth += growth.bytes;
        LWLockRelease(lock);
    });
}

extern "C" {

static void at_ledger_transaction_end(XactEvent event, void*) {
    if (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT && event != XACT_EVENT_PREPARE)
        return;
    if (has_growth) settle_growth(event != XACT_EVENT_ABORT);
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
    if (!found) growth->bytes = 0;
    return *growth;
}

void end_round(Account& account, bool broken) {
    if (!broken) {
        account.known = account.counted;
        account.last_growth = std::exchange(account.growth, 0);
    }
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

template <class Use>
bool with_round(Use use) {
    return with_account(whole_database, {}, Missing::leave,
                        [&use](Account& account) { use(account.round); }) != Accounts::none;
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

// The local note comes first: it may fail, and what is pending must not be forgotten.
void note_growth(std::int32_t scope_id, std::string_view tenant, std::int64_t bytes) {
    Assert(bytes >= 0 && IsTransactionState());
    if (!accounts.available() || bytes == 0) return;
    std::uint32_t number = Accounts::none;
    do {
        number = with_account_or_new(scope_id, tenant, [](const Account&) {});
        if (number == Accounts::none) return;  // the next round counts the row
        (void)growth_of(number);
    } while (with_account(scope_id, tenant, Missing::leave,
                          [bytes](Account& account) { account.pending += bytes; }) != number);
    growth_of(number).bytes += bytes;
}

void begin_count(Relation records, BlockNumber first) {
    if (!accounts.available()) return;
    const Oid file = records->rd_rel->relfilenode;
    (void)with_round([=](Round& round) {
        if (round.file != file) round = {file, first, {}, first > 0};
        if (first > round.next) round.broken = true;
        round.next = first;
    });
}

void count_row(std::int32_t scope_id, std::string_view tenant, const ItemPointerData& row,
               std::int64_t bytes) {
    Assert(accounts.available() && bytes > 0);
    bool is_new = false;
    const bool counts = with_round([&](Round& round) {
        ItemPointerData tid = row;
        is_new = ItemPointerCompare(&tid, &round.counted) > 0;
        if (is_new) round.counted = row;
    });
    const auto add = [bytes](Account& account) { account.counted += bytes; };
    if (is_new) (void)with_account_or_new(scope_id, tenant, add);
    if (!counts) (void)has_round();  // the next one counts
}

void continue_count(BlockNumber next) {
    if (!accounts.available()) return;
    bool broken = false;
    const bool counts = with_round([&](Round& round) {
        broken = round.broken;
        round.next = next;
        if (next > 0) return;
        round.counted = ItemPointerData{};
        round.broken = false;
    });
    if (counts && next == 0) end_round(broken);
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
