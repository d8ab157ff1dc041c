// A record table as an argument.
#pragma once

#include "pg/server.hpp"

namespace idem::api {

// The table, or common_records if it is idem.record. Raises 42P01, 42809 or 42501 unless it is a
// record table.
Oid usable_records(Oid table);

// Sets the table to the one that the scope's keys are in now. Returns whether that is another.
bool follow_records(std::int32_t scope, Oid& table);

// The same, and locks the table until the transaction ends. Under this lock it stays the table of
// the scope: alter_scope() waits for it before it counts the records that would be left behind.
void lock_records(std::int32_t scope, Oid& table);

}  // namespace idem::api
