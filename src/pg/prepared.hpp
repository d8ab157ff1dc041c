// What prepared transactions hold: the keys behind the rows that they have written.
//
// A prepared transaction has no backend that could note its claims, and outlives the server; but
// its rows are there, in progress, and a dirty scan of the whole table finds them. A claim that it
// released has no row, and only its lock shows.
#pragma once

#include "pg/server.hpp"

namespace idem::pg {

struct PreparedClaim {
    TransactionId transaction;
    TimestampTz created;
    std::int32_t scope_id;
    std::int32_t attempt;
    std::string_view tenant;
    std::string_view key;
};
static_assert(std::is_trivially_copyable_v<PreparedClaim>);

// Hands each to visit, with the caller's data; the views live as long as that call. Nothing on a
// standby, which cannot tell a prepared transaction from a running one.
void visit_prepared_claims(void (*visit)(const PreparedClaim& claim, void* data), void* data);

// The prepared transaction that holds a lock under this virtual transaction id; invalid: none does,
// or more than one may.
TransactionId prepared_transaction(const VirtualTransactionId& vxid);

}  // namespace idem::pg
