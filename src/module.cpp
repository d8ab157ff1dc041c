// The module: its magic block, and what each process registers when it loads the library.
#include "pg/guc.hpp"
#include "pg/open_claims.hpp"
#include "pg/record_tables.hpp"
#include "pg/scope.hpp"
#include "pg/secret.hpp"
#include "pg/server.hpp"
#include "pg/shared_memory.hpp"
#include "pg/table.hpp"
#include "worker/worker.hpp"

extern "C" {
PG_MODULE_MAGIC;
PGDLLEXPORT void _PG_init(void);
}

void _PG_init(void) {
    idem::pg::guc::define();
    idem::pg::init_tables();
    idem::pg::init_record_tables();
    idem::pg::init_scopes();
    idem::pg::init_secrets();
    idem::pg::init_claims();
    idem::pg::init_shared_memory();
    idem::worker::register_launcher();
}
