// What a record table must be, and what cures one that is not (pg/record_tables says which tables
// these are).
//
// Reads the catalog only, and locks nothing but the relations that the caller has opened.
#pragma once

#include "pg/server.hpp"

namespace idem::pg::record_table {

// The type that marks record tables; InvalidOid if the extension is not installed.
Oid digest_type();

// Why a relation is not used as a record table.
struct Fault {
    enum { none, shape, owner, privileges, index } kind;
    const char* detail = nullptr;
    Oid relation = InvalidOid;  // the table, or a parent of the partition
    Oid writer = InvalidOid;    // the role that has the privileges; InvalidOid is PUBLIC
};

// common is idem.record, open.
Fault fault_of(Relation relation, Relation common);

// A SQL statement, or a sentence that says what to do. The relation has the fault.
const char* remedy_for(Relation relation, Relation common, const Fault& fault);

}  // namespace idem::pg::record_table
