#include "pg/error_object.hpp"

namespace idem::pg {
namespace {

void push(JsonbParseState** state, JsonbIteratorToken token, const char* text) {
    JsonbValue value;
    value.type = jbvString;
    value.val.string.val = const_cast<char*>(text);
    value.val.string.len = static_cast<int>(strlen(text));
    pushJsonbValue(state, token, &value);
}

void add(JsonbParseState** state, const char* name, const char* text) {
    if (text == nullptr) return;
    push(state, WJB_KEY, name);
    push(state, WJB_VALUE, text);
}

}  // namespace

Jsonb* error_object(const ErrorData& error) {
    JsonbParseState* state = nullptr;
    pushJsonbValue(&state, WJB_BEGIN_OBJECT, nullptr);
    add(&state, "sqlstate", unpack_sql_state(error.sqlerrcode));
    add(&state, "message", error.message);
    add(&state, "detail", error.detail);
    add(&state, "hint", error.hint);
    return JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, nullptr));
}

char* error_member(Jsonb* error, std::string_view name) {
    JsonbValue value;
    if (error == nullptr || !JB_ROOT_IS_OBJECT(error)) return nullptr;
    if (getKeyJsonValueFromContainer(&error->root, name.data(), static_cast<int>(name.size()),
                                     &value) == nullptr)
        return nullptr;
    if (value.type != jbvString || value.val.string.len == 0) return nullptr;
    return pnstrdup(value.val.string.val, static_cast<Size>(value.val.string.len));
}

}  // namespace idem::pg
