// Which claims hold their keys, in all backends and in prepared transactions.
//
// Other sessions do not see what a transaction claims and finishes until it commits, yet it keeps
// the key until then. So each backend notes one claim in a slot of its own in shared memory, when
// the library is preloaded: its newest open atomic claim, or else the newest that waits for the
// commit. Slots are written and read without a lock, by the protocol of pg_stat_activity
// (utils/backend_status.h); a note costs a copy of its bytes.
//
// A note names the virtual transaction that it belongs to, and counts only while that runs. So
// nothing remains of a transaction that has ended or of a backend that has gone, however it ended.
//
// A prepared transaction has no backend that could note its claims, and outlives the server. Its
// rows are in the table, not committed, and a dirty scan of the whole table finds them. A claim
// that it released has no row; only its lock shows.
#pragma once

#include "pg/server/postgres.hpp"

namespace idem::pg {

enum class HeldAs : std::uint8_t {
    open,         // an atomic claim that is not finished
    uncommitted,  // finished, or leased: only the commit is missing
    prepared,
};

struct HeldClaim {
    std::int32_t scope_id;
    std::int32_t attempt;
    TimestampTz since;
    std::string_view tenant;
    std::string_view key;
    HeldAs as;
    std::int32_t keys = 0;  // the number of key locks of the transaction; unless prepared
    int pid = 0;            // of the backend; set when it is shown, unless prepared
    TransactionId transaction = InvalidTransactionId;  // if prepared
};
static_assert(std::is_trivially_copyable_v<HeldClaim>);

// Notes the claim that this transaction shows, or that it shows none. Of its texts, what exceeds
// the limits of a call is not shown.
void publish_claim(const HeldClaim& claim);
void publish_no_claim();

// Each calls show(claim, to) for the claims of this database; a claim's texts live as long as that
// call. No prepared transaction is found on a standby, which cannot tell it from a running one.
using ShowClaim = void (*)(const HeldClaim& claim, void* to);
void show_running_claims(ShowClaim show, void* to);
void show_prepared_claims(ShowClaim show, void* to);

Size held_claims_size();
void attach_held_claims(void* memory, LWLockPadded* locks, bool found);

}  // namespace idem::pg
