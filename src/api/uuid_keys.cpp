// The functions whose key is a uuid: each is the function of the same name, with the key's text.
#include "pg/boundary.hpp"

extern "C" {
Datum idem_claim(PG_FUNCTION_ARGS);
Datum idem_try_claim(PG_FUNCTION_ARGS);
Datum idem_execute(PG_FUNCTION_ARGS);
Datum idem_cancel(PG_FUNCTION_ARGS);
Datum idem_lookup(PG_FUNCTION_ARGS);
Datum idem_once(PG_FUNCTION_ARGS);
}

namespace {

constexpr int arg_key = 1;
constexpr int max_args = 7;

// The arguments are copied: a caller may keep them, constants among them, from call to call.
Datum with_text_key(FunctionCallInfo fcinfo, PGFunction function) {
    Assert(fcinfo->nargs <= max_args);
    LOCAL_FCINFO(call, max_args);
    memcpy(call, fcinfo, SizeForFunctionCallInfo(fcinfo->nargs));
    NullableDatum& key = call->args[arg_key];
    if (!key.isnull) {
        const char* text = DatumGetCString(DirectFunctionCall1(uuid_out, key.value));
        key.value = PointerGetDatum(cstring_to_text(text));
    }
    const Datum result = function(call);
    fcinfo->isnull = call->isnull;
    return result;
}

}  // namespace

IDEM_FUNCTION(idem_claim_uuid) {
    return with_text_key(fcinfo, idem_claim);
}

IDEM_FUNCTION(idem_try_claim_uuid) {
    return with_text_key(fcinfo, idem_try_claim);
}

IDEM_FUNCTION(idem_execute_uuid) {
    return with_text_key(fcinfo, idem_execute);
}

IDEM_FUNCTION(idem_cancel_uuid) {
    return with_text_key(fcinfo, idem_cancel);
}

IDEM_FUNCTION(idem_lookup_uuid) {
    return with_text_key(fcinfo, idem_lookup);
}

IDEM_FUNCTION(idem_once_uuid) {
    return with_text_key(fcinfo, idem_once);
}
