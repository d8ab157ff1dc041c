// The version of the library, for idem.health() and for the scripts that update the extension.
#include "pg/store/version.hpp"
#include "pg/server/values.hpp"
#include "pg/store/table.hpp"

namespace idem::api {

// The version, and -1, 0 or 1: older than the objects in this database, the same, or newer.
IDEM_FUNCTION(idem_library) {
    const std::strong_ordering order = pg::library_order();
    pg::Row<2> row;
    row.set_text(0, pg::library_version);
    row.set_int(1, std::is_lt(order) ? -1 : std::is_gt(order));
    InitMaterializedSRF(fcinfo, 0);
    row.add_to_result_of(fcinfo);
    return Datum{0};
}

// The catalog has the new version already. Other sessions, too, compare theirs with it again.
IDEM_FUNCTION(idem_begin_update) {
    (void)fcinfo;
    pg::forget_version();
    pg::require_library();
    CacheInvalidateRelcacheByRelid(pg::table_oid(pg::Table::record));
    PG_RETURN_VOID();
}

}  // namespace idem::api
