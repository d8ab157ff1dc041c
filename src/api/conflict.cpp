#include "api/conflict.hpp"

#include "pg/guc.hpp"
#include "pg/report.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;

void append_paths(StringInfo out, std::span<const char* const> paths) {
    for (std::size_t i = 0; i < paths.size(); ++i) {
        if (i > 0) appendStringInfoString(out, i + 1 < paths.size() ? ", " : " and ");
        appendStringInfo(out, "\"%s\"", paths[i]);
    }
}

// What follows a sentence that says that the requests differ: in what, if that is known.
const char* account_of(const pg::Differences* differences) {
    if (differences == nullptr) return "";
    struct Clause {
        const pg::Differences::Paths& paths;
        const char* of_one;
        const char* of_many;
    };
    const std::array clauses = {
        Clause{differences->changed, " has another value", " have other values"},
        Clause{differences->added, " is new", " are new"},
        Clause{differences->missing, " is missing", " are missing"}};
    StringInfoData account;
    initStringInfo(&account);
    auto left = std::ranges::count_if(clauses, [](const Clause& c) { return c.paths.count > 0; }) +
                (differences->more > 0);
    const char* separator = ": ";
    const auto begin_clause = [&] {
        appendStringInfoString(&account, separator);
        separator = --left == 1 ? ", and " : ", ";
    };
    for (const auto& [paths, of_one, of_many] : clauses) {
        if (paths.count == 0) continue;
        begin_clause();
        append_paths(&account, paths.view());
        appendStringInfoString(&account, paths.count == 1 ? of_one : of_many);
    }
    if (differences->more > 0) {
        begin_clause();
        appendStringInfo(&account, differences->more == 1 ? "%zu more differs" : "%zu more differ",
                         differences->more);
    }
    return account.data;
}

int errdiffers(const Conflict& conflict) {
    ArrayType* paths = differing_members(conflict);
    if (paths == nullptr) return 0;
    return err_generic_string(PG_DIAG_COLUMN_NAME,
                              OidOutputFunctionCall(F_ARRAY_OUT, PointerGetDatum(paths)));
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
    if (record.fingerprint == nullptr)
        return {.detail = "The key was first used without a request, and this call has one.",
                .account = ": the first call has none",
                .hint =
                    "For a retry, pass no request, as the first call did. For a new operation, "
                    "use a new key."};
    Conflict conflict{
        .hint =
            "Use a new key for a new operation, and send the same request again for a retry. "
            "List members of the request that may differ between retries in the scope's "
            "\"request_exclude\"."};
    if (scope.store_request != pg::StoreRequest::always)
        conflict.advice =
            " To see which members differ, set the scope's \"store_request\" to "
            "\"always\".";
    if (record.request == nullptr) return conflict;
    pg::Record kept = record;
    pg::hide_outlived_answer(kept, scope.answer_ttl, now);
    if (kept.request != nullptr)
        conflict.differences = pg::differences(request, pg::request_of(kept),
                                               pg::request_list(scope, record.fingerprint));
    return conflict;
}

ArrayType* differing_members(const Conflict& conflict) {
    if (conflict.differences == nullptr) return nullptr;
    const auto& [changed, added, missing, more] = *conflict.differences;
    std::array<Datum, pg::max_differences> paths;
    std::size_t count = 0;
    for (const auto* of_kind : {&changed, &added, &missing})
        for (const char* path : of_kind->view()) paths[count++] = CStringGetTextDatum(path);
    return construct_array(paths.data(), static_cast<int>(count), TEXTOID, -1, false, TYPALIGN_INT);
}

void refuse_conflict(std::string_view key, const Conflict& conflict) {
    ereport(ERROR,
            (report::own_error("key_conflict"), errdiffers(conflict),
             errmsg("key \"%s\" was used for a different request", report::c_string(key)),
             conflict.detail != nullptr
                 ? errdetail_internal("%s", conflict.detail)
                 : errdetail("The request differs from the one that the key was first used with%s.",
                             account_of(conflict.differences)),
             errhint("%s%s", conflict.hint, conflict.advice)));
}

// Statement and context are left out: they may have the request in them.
void log_conflict(const pg::Scope& scope, const pg::KeyName& name, const Conflict& conflict) {
    const char* of_tenant =
        name.tenant.empty() ? "" : psprintf(" of tenant \"%s\"", report::c_string(name.tenant));
    ereport(
        pg::guc::log_conflicts,
        (report::own_error("key_conflict"), errdiffers(conflict),
         errmsg("conflicting requests for a key in scope \"%s\"", scope.name),
         errdetail(
             "Key \"%s\"%s was used for a different request%s.", report::c_string(name.key),
             of_tenant,
             conflict.account != nullptr ? conflict.account : account_of(conflict.differences)),
         errhint("%s%s", conflict.hint, conflict.advice), errhidestmt(true), errhidecontext(true)));
}

}  // namespace idem::api
