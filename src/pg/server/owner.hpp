// Whose code runs when a process rewrites rows for others: the purge worker, and what a superuser
// calls to purge or erase.
//
// A new row version may call functions: those in the expressions and conditions of indexes, and
// those in partition keys. A role that may replace one would act with the rights of the
// process. So rows are rewritten as VACUUM does it: as the table's owner, in a security-restricted
// operation, with a search_path that only superusers can add objects to. Where the owner is a
// superuser, only built-in functions may run: a table that calls others is not rewritten.
#pragma once

#include "pg/server/postgres.hpp"

namespace idem::pg {

// From the construction until end(), the process acts as the table's owner. After an error, the end
// of the (sub)transaction restores what was before.
class AsOwner {
  public:
    explicit AsOwner(Relation table);
    AsOwner(const AsOwner&) = delete;
    AsOwner& operator=(const AsOwner&) = delete;
    void end();

  private:
    Oid user_;
    int context_;
    int settings_;
};
static_assert(std::is_trivially_destructible_v<AsOwner>);

// Of a table of a superuser, the index, or the partitioned table above it, that keeps it from being
// rewritten because it does; InvalidOid if there is none.
Oid keeps_from_rewriting(Relation table);

}  // namespace idem::pg
