// Which process or prepared transaction holds a key, as far as other backends can see.
#pragma once

#include "pg/server/postgres.hpp"

namespace idem::pg {

// Where an operation in flight was seen; every part may be unknown.
struct Holder {
    std::optional<int> pid{};
    std::optional<TimestampTz> since{};
    std::optional<TimestampTz> lease_end{};  // of a leased claim
    std::optional<TransactionId> prepared{};
    bool released = false;  // under no lease: its next attempt is due at lease_end
};

// The process with this id; nothing is known of none, which is 0.
Holder holder_of_process(int pid);

// The process that runs the transaction, or the prepared transaction.
Holder holder_of(TransactionId xid);

}  // namespace idem::pg
