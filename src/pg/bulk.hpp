// Many records in one call, without key locks: what idem.once_each() writes with.
//
// Only the unique index keeps concurrent calls apart, as for INSERT ... ON CONFLICT, and by the
// same means: a row goes in speculatively, and is taken back at once when its key turns out to be
// taken. A caller that meets such a row waits for that decision only, never for the transaction,
// and the inserter waits for nothing before it has decided. So two callers of one key cannot come
// to wait for each other. Over many keys they cannot either, if both go in the order of the
// digests: a caller that waits holds only smaller ones.
//
// Beside the primary key, other unique indexes may have the digest: those of REINDEX CONCURRENTLY.
// All of them take part in the decision; all other indexes, whose functions and constraints may
// wait or raise, are filled after it.
//
// The scan, the open indexes and the row's slot serve all keys of the call; what one key needs is
// freed at the next look. The table is locked as by Records::to_write(), before the index list is
// read, so the list stays true until end().
#pragma once

#include "pg/store.hpp"

namespace idem::pg {

class BulkWriter {
  public:
    explicit BulkWriter(const Records& records);
    BulkWriter(const BulkWriter&) = delete;
    BulkWriter& operator=(const BulkWriter&) = delete;
    void end();

    // What decides about the key; valid until the next look.
    Found look(const KeyName& name);
    // Inserts the record, or puts it in the place of the row that was found. False when somebody
    // came first: look again.
    bool write(const KeyName& name, const Record& record, const Found& found);
    // Waits for whoever is at work on the row that was found.
    void wait() { scan_.wait(); }

  private:
    bool insert();
    bool replace(const KeyName& name, const Found& found);

    Records records_;
    DigestScan scan_;
    OpenIndexes indexes_;
    TupleTableSlot* row_;
    MemoryContext memory_;  // of one key
};
static_assert(std::is_trivially_destructible_v<BulkWriter>);

}  // namespace idem::pg
