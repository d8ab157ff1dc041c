#include "pg/guc.hpp"

#include "pg/server.hpp"

namespace idem::pg::guc {

constinit char* tenant = nullptr;
constinit int max_open_claims = 2000;

void define() {
    DefineCustomStringVariable("idem.tenant", "Tenant of the calls that do not name one.",
                               "An argument \"tenant\" that is not null comes first.", &tenant, "",
                               PGC_USERSET, 0, nullptr, nullptr, nullptr);
    // The lock table is shared by the whole server, so a session cannot raise this on its own.
    DefineCustomIntVariable("idem.max_open_claims",
                            "Sets the maximum number of key locks that a transaction holds.",
                            "A claim keeps its lock until the transaction ends.", &max_open_claims,
                            max_open_claims, 1, INT_MAX, PGC_SUSET, 0, nullptr, nullptr, nullptr);
    MarkGUCPrefixReserved("idem");
}

}  // namespace idem::pg::guc
