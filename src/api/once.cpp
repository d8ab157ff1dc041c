// idem.once(): claim and complete in one, for consumers who see a message at least once.
//
// There is no answer to store: that the key is finished is all. Locking: as claim and complete.
#include "api/arguments.hpp"
#include "api/claim.hpp"
#include "api/finish.hpp"

namespace idem::api {
namespace {

enum Argument { arg_scope, arg_key, arg_request, arg_tenant };

ClaimCall read_call(FunctionCallInfo fcinfo) {
    const std::string_view key = checked_key(pg::text_arg(fcinfo, arg_key));
    const std::string_view tenant = checked_tenant(pg::text_arg(fcinfo, arg_tenant));
    const pg::Scope& scope = pg::usable_scope(pg::text_arg(fcinfo, arg_scope), "once");
    ClaimCall call = claim_call(scope, key, tenant, pg::jsonb_arg(fcinfo, arg_request),
                                std::nullopt, std::nullopt);
    call.writes_at_once = true;
    call.wait_set_by = pg::report::WaitSetBy::scope;
    return call;
}

bool first_time(const ClaimCall& call) {
    const Claiming claiming = claim_key(call);
    switch (claiming.outcome) {
        case Outcome::claimed:
            finish_atomic(*claiming.claim, {.state = core::State::completed});
            return true;
        case Outcome::completed:
            return false;
        default:
            refuse(call, claiming);
    }
}

}  // namespace
}  // namespace idem::api

IDEM_FUNCTION(idem_once) {
    using namespace idem;
    api::require_writable("idem.once()", api::read_by_lookup);
    PG_RETURN_BOOL(api::first_time(api::read_call(fcinfo)));
}
