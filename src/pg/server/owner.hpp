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

// Calls visit(dependency) for the rows of pg_depend about an object: those that its index finds by
// the catalog and the OID in the column with this number and the next.
template <class Visit>
void each_dependency(Oid index, AttrNumber column, Oid catalog, Oid object, Visit visit) {
    ScanKeyData keys[2];
    ScanKeyInit(&keys[0], column, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(catalog));
    ScanKeyInit(&keys[1], static_cast<AttrNumber>(column + 1), BTEqualStrategyNumber, F_OIDEQ,
                ObjectIdGetDatum(object));
    Relation depend = table_open(DependRelationId, AccessShareLock);
    SysScanDesc scan = systable_beginscan(depend, index, true, nullptr, lengthof(keys), keys);
    for (HeapTuple tuple; HeapTupleIsValid(tuple = systable_getnext(scan));)
        visit(*reinterpret_cast<const FormData_pg_depend*>(GETSTRUCT(tuple)));
    systable_endscan(scan);
    table_close(depend, AccessShareLock);
}

// Whether the index or the partitioned table calls a function that is not built in.
bool calls_foreign_code(Oid relation);

// Of a table of a superuser, the index, or the partitioned table above it, that keeps it from being
// rewritten because it does; InvalidOid if there is none.
Oid keeps_from_rewriting(Relation table);

}  // namespace idem::pg
