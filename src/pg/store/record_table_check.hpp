// What a record table must be, and what cures one that is not (pg/store/record_tables says which
// tables these are).
//
// A record table is a clone of idem.record: an ordinary heap of the same owner with the same
// columns and CHECK constraints, at least its indexes, and nothing that PostgreSQL would do for a
// statement but idem does not do when it writes rows: defaults, BEFORE triggers, rules, row
// security. It has no children, and other roles may not change it, also not through a parent. Its
// other indexes, and the partition keys of its parents, call no function but PostgreSQL's own, so
// that a role that writes or purges a row runs no other role's code; triggers are
// pg/store/triggers' concern. The tenant, if it is a column, has a type without checks.
//
// idem.record and idem.watermark are judged by the same rules, as far as they can break them, and
// are no partitions. They hold the records of every scope, so a fault is not refused there, unless
// rows could be lost or would not be stored as written: idem.health() fails.
//
// Reads the catalog only, and locks nothing but the relations that the caller has opened, and their
// indexes.
#pragma once

#include "pg/server/postgres.hpp"

namespace idem::pg {

// The last column of idem.record in this release.
inline constexpr const char* last_record_column = "extra_attempts";

// The type that marks record tables; InvalidOid if the extension is not installed.
Oid digest_type();

// Why a relation is not used as a record table, and what to do about it: a SQL statement, or a
// sentence.
struct RecordTableFault {
    enum Kind { shape, gone, unmarked, owner, privileges };

    const char* detail = nullptr;  // NULL: there is no fault
    const char* remedy = nullptr;
    Kind kind = shape;

    explicit operator bool() const { return detail != nullptr; }
};

// What can be said of any OID without locking it: unless there is no fault, it is not locked.
RecordTableFault outward_fault(Oid table);

// Both are open. Reads only what cannot run a function.
RecordTableFault fault_of(Relation relation, Relation common);

// The same of idem.record or idem.watermark, of which idem writes so many columns.
RecordTableFault fault_of_own(Relation relation, int written);

// Of any table of idem that is dumped: a column that the table has not on another server.
RecordTableFault column_of_others(Relation relation, int written);

}  // namespace idem::pg
