// Record tables beside idem.record: idem.use_records() chooses one, and
// idem_internal.record_tables() lists them. idem.create_record_table() is SQL.
// idem_internal.own_tables() judges the tables that the extension makes.
//
// A choice needs no privilege: a record table is idem's, and a key is found there under its scope
// and tenant only. The caller has to name the same table for the same key.
#include "api/arguments.hpp"
#include "pg/purge.hpp"
#include "pg/store/record.hpp"
#include "pg/store/scope_ids.hpp"
#include "pg/store/scope_table.hpp"
#include "pg/store/secret.hpp"
#include "pg/store/watermark.hpp"

namespace idem::api {
namespace {

// ---- idem's own tables --------------------------------------------------------------------------

enum OwnColumn { own_table, own_fault, own_remedy, own_columns };

using Judge = pg::RecordTableFault(Relation, int);

void list_own_fault(FunctionCallInfo fcinfo, pg::Table table, int written, Judge* judge) {
    Relation relation = pg::open_table(table, AccessShareLock);
    pg::Row<own_columns> row;
    row.set(own_table, ObjectIdGetDatum(RelationGetRelid(relation)));
    if (const auto fault = judge(relation, written)) {
        row.set_text(own_fault, fault.detail);
        row.set_text(own_remedy, fault.remedy);
    }
    row.add_to_result_of(fcinfo);
    relation_close(relation, AccessShareLock);
}

// ---- The list of record tables ------------------------------------------------------------------

enum ListColumn { list_records, list_fault, list_remedy, list_passed_over, list_columns };

// What the purge leaves in the table, and what to do about it, as sentences.
void set_left_rows(pg::Row<list_columns>& row, Oid table) {
    if (const auto left = pg::owning_fault(table)) {
        row.set_text(list_passed_over, psprintf("It deletes nothing. %s", left.detail));
        row.set_text(list_remedy, left.remedy);
    } else if (const auto fault = pg::rewriting_fault(table)) {
        row.set_text(list_passed_over, psprintf("It removes no answers. %s", fault.detail));
        row.set_text(list_remedy, fault.remedy);
    } else if (const auto place = pg::passed_over(table)) {
        row.set_text(list_passed_over,
                     psprintf("It has passed over rows from block %u on, because of an error with "
                              "the SQLSTATE %s.",
                              pg::number_of(place->block), place->sqlstate));
        row.set_text(list_remedy,
                     "The server's log has the error. Correct what it names; the next purge reads "
                     "the rows again.");
    }
}

void list_record_tables(FunctionCallInfo fcinfo) {
    const List* tables = pg::record_tables();
    for (int i = 0; i < list_length(tables); ++i) {
        const Oid table = list_nth_oid(tables, i);
        const auto fault = pg::fault_of_record_table(table);
        if (!fault) continue;
        pg::Row<list_columns> row;
        row.set(list_records, ObjectIdGetDatum(table));
        if (fault->detail != nullptr) {
            row.set_text(list_fault, fault->detail);
            row.set_text(list_remedy, fault->remedy);
        } else {
            set_left_rows(row, table);
        }
        row.add_to_result_of(fcinfo);
    }
}

}  // namespace

// Also for lookups on a standby.
IDEM_FUNCTION(idem_use_records) {
    require_leader("use_records");
    if (PG_ARGISNULL(0)) report::missing_argument("records");
    const Oid table = PG_GETARG_OID(0);
    relation_close(pg::open_record_table(table, AccessShareLock), AccessShareLock);
    pg::choose_records(table);
    PG_RETURN_VOID();
}

// For the views, which must know all tables on a standby too.
IDEM_FUNCTION(idem_record_tables) {
    InitMaterializedSRF(fcinfo, 0);
    list_record_tables(fcinfo);
    return Datum{0};
}

IDEM_FUNCTION(idem_own_tables) {
    InitMaterializedSRF(fcinfo, 0);
    using pg::Table;
    list_own_fault(fcinfo, Table::record, pg::Record::columns, pg::fault_of_own);
    list_own_fault(fcinfo, Table::watermark, pg::watermark_columns, pg::fault_of_own);
    list_own_fault(fcinfo, Table::scope, pg::scope_row::columns, pg::column_of_others);
    list_own_fault(fcinfo, Table::dropped_scope, pg::dropped_scope_columns, pg::column_of_others);
    list_own_fault(fcinfo, Table::secret, pg::secret_columns, pg::column_of_others);
    return Datum{0};
}

}  // namespace idem::api
