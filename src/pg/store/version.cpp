#include "pg/store/version.hpp"

#include "core/version.hpp"
#include "pg/server/guc.hpp"
#include "pg/store/table.hpp"

extern "C" {
#include "catalog/pg_extension.h"
}

namespace idem::pg {
namespace {

constinit bool new_enough = false;

// NULL without the extension.
const char* objects_version() {
    const char* version = nullptr;
    ScanKeyData key;
    ScanKeyInit(&key, Anum_pg_extension_extname, BTEqualStrategyNumber, F_NAMEEQ,
                CStringGetDatum("idem"));
    Relation extensions = table_open(ExtensionRelationId, AccessShareLock);
    SysScanDesc scan = systable_beginscan(extensions, ExtensionNameIndexId, true, nullptr, 1, &key);
    if (HeapTuple row = systable_getnext(scan); HeapTupleIsValid(row)) {
        bool null;
        const Datum value =
            heap_getattr(row, Anum_pg_extension_extversion, RelationGetDescr(extensions), &null);
        if (!null) version = TextDatumGetCString(value);
    }
    systable_endscan(scan);
    table_close(extensions, AccessShareLock);
    return version;
}

std::strong_ordering order_to(const char* objects) {
    if (objects == nullptr) return std::strong_ordering::equal;
    return core::compare_versions(library_version, objects);
}

[[noreturn]] void refuse_library(const char* objects) {
    ereport(ERROR,
            (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
             errmsg("the library of idem is older than its objects in this database"),
             errdetail("The library that this %s has loaded is version %s, and the objects are "
                       "version %s. It might write what they do not allow.",
                       guc::preloaded ? "server" : "session", library_version, objects),
             guc::preloaded
                 ? errhint("Make sure that idem %s is installed, and restart the server.", objects)
                 : errhint("Make sure that idem %s is installed, and reconnect.", objects)));
}

}  // namespace

void forget_version() {
    new_enough = false;
}

std::strong_ordering library_order() {
    return order_to(objects_version());
}

void require_library() {
    if (new_enough) return;
    const char* objects = objects_version();
    if (std::is_lt(order_to(objects))) refuse_library(objects);
    new_enough = true;
}

}  // namespace idem::pg
