#include "pg/error_object.hpp"

#include "pg/compat.hpp"

namespace idem::pg {
namespace {

void push(compat::JsonbBuilder& builder, JsonbIteratorToken token, const char* text) {
    JsonbValue value;
    value.type = jbvString;
    value.val.string.val = const_cast<char*>(text);
    value.val.string.len = static_cast<int>(strlen(text));
    builder.push(token, &value);
}

void add(compat::JsonbBuilder& builder, const char* name, const char* text) {
    if (text == nullptr) return;
    push(builder, WJB_KEY, name);
    push(builder, WJB_VALUE, text);
}

}  // namespace

Jsonb* error_object(const ErrorData& error) {
    compat::JsonbBuilder builder;
    builder.push(WJB_BEGIN_OBJECT, nullptr);
    add(builder, "sqlstate", unpack_sql_state(error.sqlerrcode));
    add(builder, "message", error.message);
    add(builder, "detail", error.detail);
    add(builder, "hint", error.hint);
    builder.push(WJB_END_OBJECT, nullptr);
    return builder.finish();
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
