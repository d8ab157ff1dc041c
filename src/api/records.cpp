// idem.create_record_table(), idem.use_records() and idem_internal.record_tables(): record tables
// beside idem.record.
//
// PUBLIC may not execute the first. The second needs no privilege: a record table is idem's, and a
// key is found there under its scope and tenant only. The caller has to name the same table for the
// same key.
#include "api/arguments.hpp"
#include "pg/boundary.hpp"
#include "pg/owner.hpp"
#include "pg/record.hpp"
#include "pg/report.hpp"
#include "pg/scope.hpp"
#include "pg/sweep.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;

enum CreateArgument { arg_name, arg_tenant_column, arg_tenant_type };

// The column of the tenant, quoted where it must be.
struct TenantColumn {
    const char* definition = "";  // the name and the type, before other columns
    const char* in_key = "";      // after other columns of the primary key
};

// Both arguments about the tenant, or none.
TenantColumn read_tenant_column(FunctionCallInfo fcinfo) {
    if (PG_ARGISNULL(arg_tenant_column) != PG_ARGISNULL(arg_tenant_type))
        report::invalid_argument("tenant_column",
                                 "The arguments \"tenant_column\" and \"tenant_type\" belong "
                                 "together.",
                                 "Pass both, or neither for a table with the columns of "
                                 "idem.record alone.");
    if (PG_ARGISNULL(arg_tenant_column)) return {};
    const char* name = NameStr(*PG_GETARG_NAME(arg_tenant_column));
    const Oid type = PG_GETARG_OID(arg_tenant_type);
    if (*name == '\0')
        report::invalid_argument("tenant_column", "The name is empty.",
                                 "Pass the name of the column, such as 'tenant_id'.");
    if (!pg::is_tenant_type(type))
        report::invalid_argument("tenant_type", "The type must be text, integer, bigint or uuid.",
                                 "Pass one of these, such as 'bigint'.");
    const char* column = quote_identifier(name);
    return {psprintf("%s %s NOT NULL, ", column, format_type_be_qualified(type)),
            psprintf(", %s", column)};
}

void run(const char* statement) {
    const int code = SPI_execute(statement, false, 0);
    if (code != SPI_OK_UTILITY) elog(ERROR, "\"%s\" returned code %d", statement, code);
}

// Default privileges may have granted some. The names are those of the table and its owner.
void revoke_all(Oid relation, const char* table, const char* owner) {
    HeapTuple tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relation));
    bool null;
    const Datum value = SysCacheGetAttr(RELOID, tuple, Anum_pg_class_relacl, &null);
    Oid* roles = nullptr;
    const int size = null ? 0 : aclmembers(DatumGetAclP(value), &roles);
    ReleaseSysCache(tuple);
    if (!null) run(psprintf("REVOKE ALL ON TABLE %s FROM PUBLIC", table));
    for (int i = 0; i < size; ++i) {
        const char* role = quote_identifier(GetUserNameFromId(roles[i], false));
        if (strcmp(role, owner) != 0) run(psprintf("REVOKE ALL ON TABLE %s FROM %s", table, role));
    }
}

// A name without a schema gets the schema in which CREATE TABLE would make it. LIKE copies the
// columns as they are in this database, and the constraint; not the indexes, which others may have
// added to idem.record.
Oid create_record_table(std::string_view name, const TenantColumn& tenant) {
    RangeVar* range = makeRangeVarFromNameList(textToQualifiedNameList(pg::text_of(name)));
    range->schemaname = get_namespace_name(RangeVarGetCreationNamespace(range));
    const char* table = quote_qualified_identifier(range->schemaname, range->relname);
    Relation records = table_open(pg::table_oid(pg::Table::record), AccessShareLock);
    const char* owner = quote_identifier(GetUserNameFromId(records->rd_rel->relowner, false));
    table_close(records, AccessShareLock);
    if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
    run(
        psprintf("CREATE TABLE %s (%sLIKE idem.record INCLUDING CONSTRAINTS INCLUDING STORAGE "
                 "INCLUDING COMPRESSION)",
                 table, tenant.definition));
    run(psprintf("ALTER TABLE %s ALTER COLUMN digest TYPE idem.key_digest", table));
    run(psprintf("ALTER TABLE %s ADD PRIMARY KEY (digest%s)", table, tenant.in_key));
    run(
        psprintf("CREATE INDEX ON %s (scope) WHERE state OPERATOR(pg_catalog.=) "
                 "'p'::pg_catalog.\"char\"",
                 table));
    run(
        psprintf("COMMENT ON TABLE %s IS 'Records of idem, as in idem.record. Written and read by "
                 "idem''s functions only.'",
                 table));
    run(psprintf("ALTER TABLE %s OWNER TO %s", table, owner));
    const Oid relation = RangeVarGetRelid(range, NoLock, false);
    revoke_all(relation, table, owner);
    SPI_finish();
    return relation;
}

// ---- The list of record tables ------------------------------------------------------------------

enum ListColumn { list_records, list_fault, list_remedy, list_passed_over, list_columns };

// What the purge leaves in the table, and what to do about it, as sentences.
void set_left_rows(pg::Row<list_columns>& row, Oid table) {
    Relation relation = pg::try_open_records(table, AccessShareLock);
    if (relation == nullptr) return;
    const Oid caller = pg::keeps_from_rewriting(relation);
    relation_close(relation, AccessShareLock);
    if (OidIsValid(caller)) {
        const char* name = pg::qualified_name(caller);
        row.set_text(list_passed_over,
                     psprintf("It removes no answers, because %s calls a function that is not "
                              "built in, and the owner of the table is a superuser.",
                              name));
        row.set_text(list_remedy, get_rel_relkind(caller) == RELKIND_PARTITIONED_TABLE
                                      ? psprintf("ALTER TABLE %s DETACH PARTITION %s", name,
                                                 pg::qualified_name(table))
                                      : psprintf("DROP INDEX %s", name));
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

// The table as it is given elsewhere.
Oid usable_records(Oid table) {
    pg::require_record_table(table);
    pg::Records::to_read(pg::as_given(table)).close();
    return pg::as_given(table);
}

}  // namespace
}  // namespace idem::api

IDEM_FUNCTION(idem_create_record_table) {
    using namespace idem;
    api::require_writable("idem.create_record_table()");
    const auto name = pg::text_arg(fcinfo, api::arg_name);
    if (!name) pg::report::missing_argument("name");
    const Oid relation = api::create_record_table(*name, api::read_tenant_column(fcinfo));
    (void)api::usable_records(relation);
    PG_RETURN_OID(relation);
}

// Also for lookups on a standby.
IDEM_FUNCTION(idem_use_records) {
    using namespace idem;
    api::require_leader("idem.use_records()");
    if (PG_ARGISNULL(0)) pg::report::missing_argument("records");
    pg::choose_records(api::usable_records(PG_GETARG_OID(0)));
    PG_RETURN_VOID();
}

// For the views, which must know all tables on a standby too.
IDEM_FUNCTION(idem_record_tables) {
    InitMaterializedSRF(fcinfo, 0);
    idem::api::list_record_tables(fcinfo);
    return Datum{0};
}
