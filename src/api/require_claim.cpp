// idem.require_claim(): a trigger that rejects writes to a table outside a claimed operation.
//
// It looks only at what this transaction has claimed, and needs no lock and no table for it. Before
// it raises an error, it checks that the scopes that the trigger names exist.
#include "api/arguments.hpp"
#include "pg/open_claims.hpp"

namespace idem::api {
namespace {

using Names = std::span<char* const>;

const TriggerData& called_as_trigger(FunctionCallInfo fcinfo) {
    if (!CALLED_AS_TRIGGER(fcinfo))
        ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
                        errmsg("idem.require_claim() was not called as a trigger"),
                        errdetail("A statement cannot call the function directly."),
                        errhint("Use it in CREATE TRIGGER ... EXECUTE FUNCTION.")));
    return *reinterpret_cast<const TriggerData*>(fcinfo->context);
}

Names scopes_of(const TriggerData& data) {
    const Trigger& trigger = *data.tg_trigger;
    if (trigger.tgnargs == 0)
        ereport(ERROR,
                (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                 errmsg("trigger \"%s\" names no scope", trigger.tgname),
                 errdetail("idem.require_claim() takes the names of one or more scopes."),
                 errhint("Create the trigger with the names of the scopes as its arguments, for "
                         "example with EXECUTE FUNCTION idem.require_claim('payments').")));
    return {trigger.tgargs, static_cast<std::size_t>(trigger.tgnargs)};
}

// "a", "b"
char* quoted_list(Names names) {
    StringInfoData list;
    initStringInfo(&list);
    for (const char* name : names)
        appendStringInfo(&list, "%s\"%s\"", list.len == 0 ? "" : ", ", name);
    return list.data;
}

[[noreturn]] void refuse_write(const TriggerData& data, Names scopes) {
    Relation relation = data.tg_relation;
    for (const char* name : scopes)
        if (pg::find_scope(name) == nullptr)
            report::unknown_scope(
                name, pg::nearest_scope(name),
                psprintf("Trigger \"%s\" of table \"%s\" names this scope.",
                         data.tg_trigger->tgname, RelationGetRelationName(relation)),
                report::Creatable::yes);
    // The fields name the table, and therefore the table's schema and not idem's.
    constexpr report::OwnError own("claim_required");
    ereport(
        ERROR,
        (errcode(report::errcode_of(own.sqlstate)),
         err_generic_string(PG_DIAG_CONSTRAINT_NAME, own.name), errtable(relation),
         errmsg("cannot write to table \"%s\" without a claim", RelationGetRelationName(relation)),
         errdetail_plural("This transaction has no claim in scope %s.",
                          "This transaction has no claim in any of the scopes %s.", scopes.size(),
                          quoted_list(scopes)),
         errhint(
             "Before the write, claim the operation's key with idem.claim(), or renew its lease "
             "with idem.renew(), in the same transaction. ROLLBACK TO a savepoint undoes what "
             "was claimed after it.")));
}

// A row trigger returns the row to be written; the result of a statement trigger is ignored.
Datum let_pass(const TriggerData& data) {
    if (!TRIGGER_FIRED_FOR_ROW(data.tg_event)) return Datum{0};
    const bool update = TRIGGER_FIRED_BY_UPDATE(data.tg_event);
    return PointerGetDatum(update ? data.tg_newtuple : data.tg_trigtuple);
}

}  // namespace

IDEM_FUNCTION(idem_require_claim) {
    const TriggerData& data = called_as_trigger(fcinfo);
    const Names scopes = scopes_of(data);
    if (!std::ranges::any_of(scopes, pg::has_claimed_in)) refuse_write(data, scopes);
    return let_pass(data);
}

}  // namespace idem::api
