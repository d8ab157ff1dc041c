#include "pg/server/guc.hpp"

#include "pg/server/postgres.hpp"

namespace idem::pg::guc {

constinit char* tenant = nullptr;
constinit int max_open_claims = 2000;
constinit int counted_scopes = 1000;
constinit int limited_tenants = 10000;
constinit int purge_naptime = 10'000;
constinit int purge_rate = 100'000;
constinit int log_conflicts = 0;
constinit int log_transitions = 0;
constinit bool preloaded = false;

namespace {

// The size of shared memory is fixed when the server starts. A library that is not preloaded has
// none; postgresql.conf may contain the setting all the same, but it has no effect.
GucContext at_server_start() {
    return preloaded ? PGC_POSTMASTER : PGC_SIGHUP;
}

// The levels of client_min_messages below ERROR.
constexpr std::array<config_enum_entry, 11> log_levels = {{{"off", 0, false},
                                                           {"debug5", DEBUG5, false},
                                                           {"debug4", DEBUG4, false},
                                                           {"debug3", DEBUG3, false},
                                                           {"debug2", DEBUG2, false},
                                                           {"debug1", DEBUG1, false},
                                                           {"log", LOG, false},
                                                           {"info", INFO, false},
                                                           {"notice", NOTICE, false},
                                                           {"warning", WARNING, false},
                                                           {nullptr, 0, false}}};

}  // namespace

void define() {
    preloaded = process_shared_preload_libraries_in_progress;
    DefineCustomStringVariable("idem.tenant", "Sets the tenant of calls that do not pass one.",
                               "A \"tenant\" argument that is not null takes precedence.", &tenant,
                               "", PGC_USERSET, 0, nullptr, nullptr, nullptr);
    // All sessions share the server's lock table, so an ordinary role may not raise this.
    DefineCustomIntVariable(
        "idem.max_open_claims", "Sets the maximum number of key locks that a transaction may hold.",
        "A claim keeps its key lock until the transaction ends.", &max_open_claims, max_open_claims,
        1, INT_MAX, PGC_SUSET, 0, nullptr, nullptr, nullptr);
    DefineCustomIntVariable("idem.counted_scopes",
                            "Sets the maximum number of scopes, in all databases, that have "
                            "statistics.",
                            "Each takes 1.3 kB of shared memory. Has no effect unless the "
                            "library is preloaded.",
                            &counted_scopes, counted_scopes, 1, 1'000'000, at_server_start(), 0,
                            nullptr, nullptr, nullptr);
    DefineCustomIntVariable("idem.limited_tenants",
                            "Sets the maximum number of tenants whose claims are counted for "
                            "\"claims_per_minute\" at the same time.",
                            "Each takes some 400 bytes of shared memory. Has no effect unless "
                            "the library is preloaded.",
                            &limited_tenants, limited_tenants, 64, 10'000'000, at_server_start(), 0,
                            nullptr, nullptr, nullptr);
    // As with auto_explain, an administrator decides what goes to the server's log.
    DefineCustomEnumVariable(
        "idem.log_conflicts",
        "Sets the level of the message about a key that is used with a different request.",
        "The message is also sent when the conflict is returned as an outcome, or its error "
        "caught.",
        &log_conflicts, log_conflicts, log_levels.data(), PGC_SUSET, 0, nullptr, nullptr, nullptr);
    DefineCustomEnumVariable(
        "idem.log_transitions",
        "Sets the level of the messages about operations that do not run to their answer.",
        "A message is sent when a lease is found lapsed, when an operation is taken over, has used "
        "up its attempts, fails, or is revoked, forgotten or erased, and when the worker has "
        "purged records.",
        &log_transitions, log_transitions, log_levels.data(), PGC_SUSET, 0, nullptr, nullptr,
        nullptr);
    DefineCustomIntVariable(
        "idem.purge_naptime", "Sets the time between two runs of the purge worker in a database.",
        "The time is shorter while the worker finds many records to delete, and "
        "longer while it finds few. 0 disables the worker.",
        &purge_naptime, purge_naptime, 0, INT_MAX, PGC_SIGHUP, GUC_UNIT_MS, nullptr, nullptr,
        nullptr);
    DefineCustomIntVariable("idem.purge_rate",
                            "Sets the maximum number of records that the purge worker deletes "
                            "per second.",
                            "0 means no limit.", &purge_rate, purge_rate, 0, INT_MAX, PGC_SIGHUP, 0,
                            nullptr, nullptr, nullptr);
    MarkGUCPrefixReserved("idem");
}

}  // namespace idem::pg::guc
