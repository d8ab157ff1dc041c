// idem.require_claim(): the trigger that lets nobody write to a table outside an operation.
//
// It asks only what this transaction has claimed; no lock, no table. Just before it raises it looks
// whether the scopes that the trigger names exist at all.
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

// What a row trigger returns is the row to be written; of a statement trigger nothing is expected.
Datum go_on(const TriggerData& data) {
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
    return api::go_on(data);
}
