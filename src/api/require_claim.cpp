// idem.require_claim(): a trigger that rejects writes to a table outside a claimed operation.
//
// It looks only at what this transaction has claimed, and needs no lock and no table for it. Before
// it raises an error, it checks that the scopes that the trigger names exist.
#include "api/arguments.hpp"
#include "pg/open_claims.hpp"
#include "pg/report.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;

using Names = std::span<char* const>;

const TriggerData& called_as_trigger(FunctionCallInfo fcinfo) {
    if (!CALLED_AS_TRIGGER(fcinfo)) report::require_claim_called_directly();
    return *reinterpret_cast<const TriggerData*>(fcinfo->context);
}

Names scopes_of(const TriggerData& data) {
    const Trigger& trigger = *data.tg_trigger;
    if (trigger.tgnargs == 0) report::trigger_without_scope(trigger.tgname);
    return {trigger.tgargs, static_cast<std::size_t>(trigger.tgnargs)};
}

[[noreturn]] void refuse(const TriggerData& data, Names scopes) {
    Relation relation = data.tg_relation;
    for (const char* name : scopes)
        if (pg::find_scope(name) == nullptr)
            report::unknown_scope(
                name, pg::nearest_scope(name),
                psprintf("Trigger \"%s\" of table \"%s\" names this scope.",
                         data.tg_trigger->tgname, RelationGetRelationName(relation)),
                true);
    report::claim_required(relation, scopes);
}

// A row trigger returns the row to be written; the result of a statement trigger is ignored.
Datum let_pass(const TriggerData& data) {
    if (!TRIGGER_FIRED_FOR_ROW(data.tg_event)) return Datum{0};
    const bool update = TRIGGER_FIRED_BY_UPDATE(data.tg_event);
    return PointerGetDatum(update ? data.tg_newtuple : data.tg_trigtuple);
}

}  // namespace
}  // namespace idem::api

IDEM_FUNCTION(idem_require_claim) {
    using namespace idem;
    const TriggerData& data = api::called_as_trigger(fcinfo);
    const api::Names scopes = api::scopes_of(data);
    if (!std::ranges::any_of(scopes, pg::has_claimed_in)) api::refuse(data, scopes);
    return api::let_pass(data);
}
