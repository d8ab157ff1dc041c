// idem.execute(): claims a key, runs an operation, and stores its result or failure, in one call.
//
// The operation runs in a subtransaction, with the caller's privileges. An error that the scope
// calls final rolls back the operation's effect, and the stored failure commits with the
// surrounding transaction. Any other error is raised again: nothing is stored, so that a retry runs
// the operation. The locks are those of claim() and complete().
#include "api/arguments.hpp"
#include "api/claim.hpp"
#include "api/finish.hpp"
#include "pg/server/failure.hpp"
#include "pg/server/subtransaction.hpp"

namespace idem::api {
namespace {

enum Argument { arg_operation = arg_key + 1, arg_request, arg_tenant, arg_ttl, arg_wait };

enum Column {
    column_outcome,
    column_replayed,
    column_response,
    column_error,
    column_redacted,
    column_completed_at,
    columns
};
using Result = pg::Row<columns>;

Oid checked_operation(FunctionCallInfo fcinfo) {
    if (PG_ARGISNULL(arg_operation)) report::missing_argument("operation");
    const Oid operation = PG_GETARG_OID(arg_operation);
    Oid* types = nullptr;
    int count = 0;
    const char* name = get_func_name(operation);
    const bool fits = name != nullptr &&
                      get_func_signature(operation, &types, &count) == JSONBOID && count == 1 &&
                      types[0] == JSONBOID && !get_func_retset(operation) &&
                      get_func_prokind(operation) == PROKIND_FUNCTION;
    if (!fits)
        report::invalid_argument(
            "operation", "The operation must be a function of one jsonb that returns jsonb.",
            "Pass its name with the type of its argument, such as 'make_payment(jsonb)'.");
    // Checked before the claim: a missing privilege says nothing about the operation's outcome.
    const Oid role = GetUserId();
    if (pg::compat::object_aclcheck(ProcedureRelationId, operation, role, ACL_EXECUTE) !=
        ACLCHECK_OK)
        aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_FUNCTION, name);
    const Oid schema = get_func_namespace(operation);
    if (pg::compat::object_aclcheck(NamespaceRelationId, schema, role, ACL_USAGE) != ACLCHECK_OK)
        aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_SCHEMA, get_namespace_name(schema));
    return operation;
}

ClaimCall read_execute_call(FunctionCallInfo fcinfo) {
    const auto ttl = pg::duration_arg(fcinfo, arg_ttl, "ttl", pg::Sign::positive);
    const auto wait = pg::duration_arg(fcinfo, arg_wait, "wait", pg::Sign::not_negative);
    const KeyCall key_call = read_key(fcinfo, arg_tenant, "execute");
    return {key_call, pg::jsonb_arg(fcinfo, arg_request), ttl.value_or(key_call.scope->ttl),
            wait.value_or(key_call.scope->wait)};
}

// Runs the operation as SELECT does. The result is NULL for a SQL NULL.
Jsonb* run_operation(Oid operation, Jsonb* request) {
    FmgrInfo function;
    fmgr_info(operation, &function);
    InvokeFunctionExecuteHook(operation);
    if (function.fn_strict && request == nullptr) return nullptr;
    LOCAL_FCINFO(call, 1);
    InitFunctionCallInfoData(*call, &function, 1, InvalidOid, nullptr, nullptr);
    call->args[0] = {JsonbPGetDatum(request), request == nullptr};
    // A function that is not VOLATILE reads with this snapshot.
    PushActiveSnapshot(GetTransactionSnapshot());
    PgStat_FunctionCallUsage usage;
    pgstat_init_function_usage(call, &usage);
    const Datum result = FunctionCallInvoke(call);
    pgstat_end_function_usage(&usage, true);
    Jsonb* response = call->isnull ? nullptr : DatumGetJsonbP(result);
    PopActiveSnapshot();
    CommandCounterIncrement();
    return response;
}

enum class Replayed : bool { no, yes };

Result execute_row(const pg::Record& record, Replayed replayed) {
    const bool completed = record.state() == core::State::completed;
    Result row;
    row.set_text(column_outcome, completed ? "completed" : "failed");
    row.set(column_replayed, BoolGetDatum(replayed == Replayed::yes));
    row.set_pointer(column_response, record.response());
    row.set_pointer(column_error, record.error());
    row.set(column_redacted, BoolGetDatum(record.redacted()));
    row.set_time(column_completed_at, record.completed_at());
    return row;
}

// By the scope's list at this moment. A dropped scope calls nothing final.
bool is_final_here(std::string_view sqlstate, std::int32_t scope_id) {
    const pg::Scope* scope = pg::find_scope_by_id(scope_id);
    return scope != nullptr && core::is_final(scope->final_sqlstates, sqlstate);
}

Result run_claimed(pg::Claim& claim, Oid operation, Jsonb* request) {
    Jsonb* response = nullptr;
    ErrorData* error =
        pg::in_subtransaction([=, at = &response] { *at = run_operation(operation, request); });
    if (error != nullptr) {
        if (!is_final_here(unpack_sql_state(error->sqlerrcode), claim.scope_id))
            ReThrowError(error);
        Jsonb* stored = pg::failure_of(*error);
        Assert(pg::failure_member(stored, "sqlstate") != nullptr);
        return execute_row(finish_atomic(claim, {.state = core::State::failed, .error = stored}),
                           Replayed::no);
    }
    pg::NewRecord record =
        finish_atomic(claim, {.state = core::State::completed, .response = response});
    record.set_response(response);  // the first caller gets all of it
    record.set_redacted(false);
    return execute_row(record, Replayed::no);
}

// The operation is checked again: it may have been dropped during the wait for the key. The scope
// of the call is not used after the operation, which may have changed scopes.
Result execute(FunctionCallInfo fcinfo) {
    const ClaimCall call = read_execute_call(fcinfo);
    const ClaimResult claim = claim_key(call);
    if (claim.outcome == Outcome::claimed)
        return run_claimed(*claim.claim, checked_operation(fcinfo), call.request);
    if (claim.outcome == Outcome::completed || claim.outcome == Outcome::failed)
        return execute_row(claim.record, Replayed::yes);
    refuse_claim(call, claim);
}

}  // namespace

IDEM_FUNCTION(idem_execute) {
    require_writable("execute", read_by_lookup);
    (void)checked_operation(fcinfo);
    return execute(fcinfo).as_result_of(fcinfo);
}

}  // namespace idem::api
