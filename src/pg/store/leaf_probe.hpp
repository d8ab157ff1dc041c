// What the leaf page of an index says about a digest, without an index scan: almost every digest
// has no entry or one, and the answer is on one page.
#pragma once

#include "pg/server/postgres.hpp"

namespace idem::pg {

struct LeafEntry {
    enum class Answer {
        none,
        first,
        unclear,  // it takes an index scan to find out
    };
    Answer answer;
    // Of the first entry: the row that it points to, and the leaf page, which is pinned: as long as
    // it is, VACUUM cannot give the row's place to another row.
    ItemPointerData row;
    Buffer leaf;
};

// Reads which entry of the primary key a scan for the digest would meet first. Leaves no predicate
// lock, and calls no function of an operator class. The table and the index are locked.
LeafEntry probe_leaf(Relation table, Relation index, const pg_uuid_t& digest);

}  // namespace idem::pg
