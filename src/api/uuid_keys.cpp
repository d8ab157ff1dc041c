// The functions whose key is a uuid: each is the function of the same name, with the key's text.
#include "pg/boundary.hpp"

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

// Defines NAME_uuid for the function NAME of another file.
#define IDEM_UUID_KEY(name)                  \
    extern "C" Datum name(PG_FUNCTION_ARGS); \
    IDEM_FUNCTION(name##_uuid) {             \
        return with_text_key(fcinfo, name);  \
    }

IDEM_UUID_KEY(idem_claim)
IDEM_UUID_KEY(idem_try_claim)
IDEM_UUID_KEY(idem_execute)
IDEM_UUID_KEY(idem_cancel)
IDEM_UUID_KEY(idem_lookup)
IDEM_UUID_KEY(idem_once)
