// The unfinished operations of a scope that are due, those first that have been due longest.
//
// An operation is due when its lease has ended, or the time for which it was released has passed,
// and it has attempts left. A search reads all unfinished operations of the scope, due or not, and
// keeps a list of those that have been due longest. Because what becomes due later is younger, the
// session goes on with the list in its next calls, for a second at most. Nothing on the list is a
// fact: the caller takes the key lock, reads the row again and decides by that.
//
// Backend-local; no locking. The list is forgotten when a (sub)transaction rolls back, because what
// it has taken may be due again.
#pragma once

#include "pg/record.hpp"
#include "pg/server.hpp"

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

// The list of the filter; empty unless this session has searched for the same just now.
class Backlog {
  public:
    explicit Backlog(const DueFilter& filter);

    // Takes the operation from the list that has been due longest.
    std::optional<Due> next();
    // Makes a new list, of operations that come after the given one.
    void search(const std::optional<Due>& after);

    // Of the last search: whether it found more operations than a list has place for, and when the
    // next one will be due.
    bool has_more() const { return has_more_; }
    std::optional<TimestampTz> next_due() const { return next_due_; }

  private:
    DueFilter filter_;
    bool has_more_ = false;
    std::optional<TimestampTz> next_due_;
};
static_assert(std::is_trivially_destructible_v<Backlog>);

}  // namespace idem::pg
