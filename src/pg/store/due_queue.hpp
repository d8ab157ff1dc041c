// The unfinished operations of a scope that are due, in the order in which they became due.
//
// An operation is due when its lease has ended, or the time for which it was released has passed,
// and it has attempts left. A search reads all unfinished operations of the scope, due or not, and
// lists the operations that have been due longest. Because what becomes due later is younger, the
// session goes on with the list in its next calls, for a second at most, unless what it took was
// rolled back, and so is due again. Nothing on the list is a fact: the caller takes the key lock,
// reads the row again and decides by that.
//
// Backend-local; no locking.
#pragma once

#include "pg/store/record.hpp"

namespace idem::pg {

struct DueFilter {
    std::int32_t scope_id;
    std::optional<std::string_view> tenant;  // nothing: every tenant
    std::optional<std::int32_t> max_attempts;
    Oid table;

    bool operator==(const DueFilter&) const = default;
};

struct Due {
    TimestampTz since;
    core::Digest digest;

    bool operator<(const Due& other) const {
        return since == other.since ? digest < other.digest : since < other.since;
    }
};

class DueQueue {
  public:
    explicit DueQueue(const DueFilter& filter);

    // The operation that has been due longest, of those not returned yet. Nothing when a search of
    // this queue has found no more.
    std::optional<Due> next();
    // This transaction has taken the operation that next() returned.
    void note_taken();

    // When nothing is left: when the next operation will be due, as far as that is known.
    TimestampTz next_due() const { return next_due_; }

  private:
    void search(const std::optional<Due>& after);

    DueFilter filter_;
    bool searched_ = false;
    bool has_more_ = false;  // the last search has found more than the list has room for
    std::optional<Due> last_;
    TimestampTz next_due_ = DT_NOEND;
};
static_assert(std::is_trivially_destructible_v<DueQueue>);

}  // namespace idem::pg
