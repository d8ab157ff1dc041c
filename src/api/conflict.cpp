#include "api/conflict.hpp"

#include "pg/server/catalog.hpp"
#include "pg/server/guc.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;

void compare_requests(Conflict& conflict, Jsonb* given, Jsonb* stored, pg::PathList exclude) {
    HeapTupleHeader row = DatumGetHeapTupleHeader(
        pg::call_internal("differences", {{JSONBOID, JsonbPGetDatum(pg::redact(given, exclude))},
                                          {JSONBOID, JsonbPGetDatum(pg::redact(stored, exclude))}})
            .value);
    bool unknown;
    const Datum paths = GetAttributeByNum(row, 1, &unknown);
    if (unknown) return;
    conflict.differs = DatumGetArrayTypeP(paths);
    conflict.account = psprintf(": %s", TextDatumGetCString(GetAttributeByNum(row, 2, &unknown)));
}

int errdiffers(const Conflict& conflict) {
    if (conflict.differs == nullptr) return 0;
    return err_generic_string(
        PG_DIAG_COLUMN_NAME, OidOutputFunctionCall(F_ARRAY_OUT, PointerGetDatum(conflict.differs)));
}

}  // namespace

// A record whose answer the scope does not keep for so long has no request to explain anything by.
Conflict explain_conflict(const pg::Scope& scope, Jsonb* request, const pg::Record& record,
                          TimestampTz now) {
    if (request == nullptr)
        return {.detail = "The key was first used with a request, and this call has none.",
                .account = ": only the first call has one",
                .hint =
                    "For a retry, pass the request of the first call. For a new operation, use "
                    "a new key."};
    if (record.fingerprint() == nullptr)
        return {.detail = "The key was first used without a request, and this call has one.",
                .account = ": the first call has none",
                .hint =
                    "For a retry, pass no request, as the first call did. For a new operation, "
                    "use a new key."};
    const char* advice = scope.store_request == pg::StoreRequest::always
                             ? ""
                             : " To see which members differ, set the scope's \"store_request\" to "
                               "\"always\".";
    Conflict conflict{
        .account = "",
        .hint = psprintf("Use a new key for a new operation, and send the same request again for a "
                         "retry. List members of the request that may differ between retries in "
                         "the scope's \"request_exclude\".%s",
                         advice)};
    pg::Record kept = record;
    pg::hide_expired_answer(kept, scope.answer_ttl, now);
    if (kept.stored_request() != nullptr)
        compare_requests(conflict, request, kept.request(),
                         pg::request_list(scope, record.fingerprint()));
    conflict.detail = psprintf(
        "The request differs from the one that the key was first used with%s.", conflict.account);
    return conflict;
}

void refuse_conflict(std::string_view key, const Conflict& conflict) {
    ereport(ERROR, (report::own_error("key_conflict"), errdiffers(conflict),
                    errmsg("key \"%s\" was used for a different request", report::c_string(key)),
                    errdetail_internal("%s", conflict.detail), errhint("%s", conflict.hint)));
}

// Statement and context are left out: they may have the request in them.
void log_conflict(const pg::Scope& scope, const pg::Key& key, const Conflict& conflict) {
    const char* of_tenant =
        key.tenant.empty() ? "" : psprintf(" of tenant \"%s\"", report::c_string(key.tenant));
    ereport(pg::guc::log_conflicts,
            (report::own_error("key_conflict"), errdiffers(conflict),
             errmsg("conflicting requests for a key in scope \"%s\"", scope.name),
             errdetail("Key \"%s\"%s was used for a different request%s.",
                       report::c_string(key.key), of_tenant, conflict.account),
             errhint("%s", conflict.hint), errhidestmt(true), errhidecontext(true)));
}

}  // namespace idem::api
