#include "pg/error_object.hpp"

#include "core/errors.hpp"
#include "pg/compat.hpp"
#include "pg/report.hpp"

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
    if (text == nullptr || *text == '\0') return;
    push(builder, WJB_KEY, name);
    push(builder, WJB_VALUE, text);
}

constexpr std::array member_names =
    std::to_array<std::string_view>({"sqlstate", "message", "detail", "hint"});

constexpr const char* shape = "It must be an object with sqlstate, message, detail and hint.";
constexpr const char* shape_hint =
    "Pass at least a message, such as '{\"message\": \"card declined\"}'.";
constexpr const char* own_code_hint =
    "Choose a code of your own, such as \"P0001\", or leave \"sqlstate\" out: the failure is then "
    "raised as ID003.";

[[noreturn]] void refuse(const char* detail, const char* hint) {
    report::invalid_argument("error", detail, hint);
}

std::string_view text_of_string(const JsonbValue& value) {
    return {value.val.string.val, static_cast<std::size_t>(value.val.string.len)};
}

char* c_string(std::string_view view) {
    return pnstrdup(view.data(), view.size());
}

void check_name(std::string_view name) {
    if (std::find(member_names.begin(), member_names.end(), name) != member_names.end()) return;
    refuse(psprintf("It has a member \"%s\", which would not be raised.", c_string(name)),
           "Use the members sqlstate, message, detail and hint; the arguments \"status\", "
           "\"headers\" and \"body\" take what else a retry is to get.");
}

void check_text(std::string_view name, const JsonbValue& value) {
    if (value.type == jbvString && value.val.string.len > 0) return;
    refuse(psprintf("Its member \"%s\" is not a string, or is empty.", c_string(name)),
           psprintf("Pass \"%s\" as a string, or leave it out.", c_string(name)));
}

void check_sqlstate(std::string_view sqlstate) {
    const char* text = c_string(sqlstate);
    switch (core::failure_fault(sqlstate)) {
        case core::FailureFault::none:
            return;
        case core::FailureFault::malformed:
            refuse(
                psprintf("Its sqlstate, \"%s\", does not have five characters, 0-9 and A-Z.", text),
                own_code_hint);
        case core::FailureFault::no_failure:
            refuse(psprintf("Its sqlstate, \"%s\", is not that of an error.", text), own_code_hint);
        case core::FailureFault::ours:
            refuse(psprintf("Its sqlstate, \"%s\", is of class ID, which only idem raises.", text),
                   own_code_hint);
        case core::FailureFault::transient:
            refuse(psprintf("Its sqlstate, \"%s\", says that a retry may succeed, but every retry "
                            "would get this failure.",
                            text),
                   "If a retry may cure the failure, call idem.release() or roll back, and store "
                   "nothing; if not, choose a code of your own, such as \"P0001\".");
    }
}

void check_member(std::string_view name, const JsonbValue& value) {
    check_name(name);
    check_text(name, value);
    if (name == "sqlstate") check_sqlstate(text_of_string(value));
}

bool has_member(Jsonb* error, const char* name) {
    JsonbValue value;
    return getKeyJsonValueFromContainer(&error->root, name, static_cast<int>(strlen(name)),
                                        &value) != nullptr;
}

}  // namespace

void check_is_error_object(Jsonb* error) {
    if (!JB_ROOT_IS_OBJECT(error)) refuse(shape, shape_hint);
}

void check_error_object(Jsonb* error) {
    check_is_error_object(error);
    JsonbIterator* iterator = JsonbIteratorInit(&error->root);
    JsonbValue key;
    JsonbValue value;
    for (;;) {
        const JsonbIteratorToken token = JsonbIteratorNext(&iterator, &key, false);
        if (token == WJB_DONE) break;
        if (token != WJB_KEY) continue;
        (void)JsonbIteratorNext(&iterator, &value, true);
        check_member(text_of_string(key), value);
    }
    if (!has_member(error, "message") && !has_member(error, "sqlstate"))
        refuse("It has neither a message nor a sqlstate.", shape_hint);
}

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
