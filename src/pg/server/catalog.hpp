// What the catalogs are asked for: what depends on what, and the functions of idem_internal.
#pragma once

#include "pg/server/postgres.hpp"

namespace idem::pg {

// Calls visit(dependency) for the rows of pg_depend about an object, which this index finds by the
// catalog and the OID in the column with this number and the next.
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

// A copy of the fixed part of a row that has an OID; nothing if there is none.
template <class Form>
std::optional<Form> find_form(SysCacheIdentifier cache, Oid oid) {
    HeapTuple tuple = SearchSysCache1(cache, ObjectIdGetDatum(oid));
    if (!HeapTupleIsValid(tuple)) return std::nullopt;
    const Form form = *reinterpret_cast<const Form*>(GETSTRUCT(tuple));
    ReleaseSysCache(tuple);
    return form;
}

// Whether the index or the partitioned table calls a function that is not built in.
bool calls_foreign_code(Oid relation);

// Calls a function of the schema idem_internal, which is written in SQL. The catalog is asked for
// its OID: to call it by its name, the caller would need privileges on it and on its schema.
struct TypedDatum {
    Oid type;
    Datum value;
};
NullableDatum call_internal(const char* function, std::initializer_list<TypedDatum> arguments);

}  // namespace idem::pg
