#include "pg/server/failure.hpp"

#include "pg/server/compat.hpp"
#include "pg/server/values.hpp"

namespace idem::pg {
namespace {

using report::c_string;

void add(compat::JsonbBuilder& builder, const char* name, const char* text) {
    if (text == nullptr || *text == '\0') return;
    for (const bool is_name : {true, false}) {
        const char* string = is_name ? name : text;
        JsonbValue value;
        value.type = jbvString;
        value.val.string.val = const_cast<char*>(string);
        value.val.string.len = static_cast<int>(strlen(string));
        builder.push(is_name ? WJB_KEY : WJB_VALUE, &value);
    }
}

bool find_member(Jsonb* object, std::string_view name, JsonbValue& value) {
    return getKeyJsonValueFromContainer(&object->root, name.data(), static_cast<int>(name.size()),
                                        &value) != nullptr;
}

constexpr const char* shape_hint =
    "Pass at least a message, such as '{\"message\": \"card declined\"}'.";
constexpr const char* own_code_hint =
    "Choose a sqlstate of your own, such as \"P0001\", or leave it out; the failure is then raised "
    "as ID003.";

[[noreturn]] void refuse_failure(const char* detail, const char* hint) {
    report::invalid_argument("error", detail, hint);
}

void check_member_name(std::string_view name, FailureUse use) {
    for (const char* known : {"sqlstate", "message", "detail", "hint"})
        if (name == known) return;
    if (use == FailureUse::note)
        refuse_failure(
            psprintf("The object has a member \"%s\", which no error has.", c_string(name)),
            "Use only the members sqlstate, message, detail and hint. Store what else the next "
            "attempt needs as a recovery point, with idem.checkpoint().");
    refuse_failure(
        psprintf("The object has a member \"%s\", which would be lost when the failure is "
                 "raised.",
                 c_string(name)),
        "Use only the members sqlstate, message, detail and hint. Pass what else a retry should "
        "receive as \"status\", \"headers\" and \"body\".");
}

void check_text(std::string_view name, const JsonbValue& value) {
    if (value.type == jbvString && value.val.string.len > 0) return;
    refuse_failure(psprintf("Member \"%s\" is not a string, or is empty.", c_string(name)),
                   psprintf("Pass \"%s\" as a string, or leave it out.", c_string(name)));
}

void check_sqlstate_to_note(std::string_view sqlstate) {
    const core::FailureFault fault = core::failure_fault(sqlstate);
    if (fault == core::FailureFault::malformed || fault == core::FailureFault::no_failure)
        refuse_failure(psprintf("The sqlstate \"%s\" is not that of an error.", c_string(sqlstate)),
                       "Pass the sqlstate of the error, such as \"08006\", or leave it out.");
}

void check_sqlstate_to_raise(std::string_view sqlstate) {
    const char* text = c_string(sqlstate);
    switch (core::failure_fault(sqlstate)) {
        case core::FailureFault::none:
            return;
        case core::FailureFault::malformed:
            refuse_failure(
                psprintf("The sqlstate \"%s\" does not consist of five characters, 0-9 and A-Z.",
                         text),
                own_code_hint);
        case core::FailureFault::no_failure:
            refuse_failure(psprintf("The sqlstate \"%s\" is not that of an error.", text),
                           own_code_hint);
        case core::FailureFault::ours:
            refuse_failure(
                psprintf("The sqlstate \"%s\" is of class ID, which only idem raises.", text),
                own_code_hint);
        case core::FailureFault::transient:
            refuse_failure(
                psprintf("The sqlstate \"%s\" says that a retry may succeed, but every retry "
                         "would receive this failure.",
                         text),
                "If a retry may succeed, call idem.release() or roll back instead of storing "
                "the failure. Otherwise choose another sqlstate, such as \"P0001\".");
    }
}

constexpr int key_failed_code = report::errcode_of(core::own_error("key_failed").sqlstate);

// A later release may take another SQLSTATE for transient, and a superuser may store any.
int errcode_to_raise(const char* sqlstate) {
    if (sqlstate == nullptr) return key_failed_code;
    const core::FailureFault fault = core::failure_fault(sqlstate);
    const bool is_fit = fault == core::FailureFault::none || fault == core::FailureFault::transient;
    return is_fit ? report::errcode_of(sqlstate) : key_failed_code;
}

}  // namespace

Jsonb* failure_of(const ErrorData& error) {
    compat::JsonbBuilder builder;
    builder.push(WJB_BEGIN_OBJECT, nullptr);
    add(builder, "sqlstate", unpack_sql_state(error.sqlerrcode));
    add(builder, "message", error.message);
    add(builder, "detail", error.detail);
    add(builder, "hint", error.hint);
    builder.push(WJB_END_OBJECT, nullptr);
    return builder.finish();
}

void check_failure(Jsonb* failure, FailureUse use) {
    if (!JB_ROOT_IS_OBJECT(failure))
        refuse_failure(
            "The value must be an object with the members sqlstate, message, detail and hint.",
            shape_hint);
    each_member(&failure->root, [use](std::string_view name, const JsonbValue& value) {
        check_member_name(name, use);
        check_text(name, value);
    });
    JsonbValue value;
    const bool has_sqlstate = find_member(failure, "sqlstate", value);
    if (has_sqlstate && use == FailureUse::note) check_sqlstate_to_note(string_of(value));
    if (has_sqlstate && use == FailureUse::answer) check_sqlstate_to_raise(string_of(value));
    if (!has_sqlstate && !find_member(failure, "message", value))
        refuse_failure("The object has neither a message nor a sqlstate.", shape_hint);
}

char* failure_member(Jsonb* failure, std::string_view name) {
    JsonbValue value;
    if (failure == nullptr || !JB_ROOT_IS_OBJECT(failure)) return nullptr;
    if (!find_member(failure, name, value)) return nullptr;
    if (value.type != jbvString || value.val.string.len == 0) return nullptr;
    return c_string(string_of(value));
}

Jsonb* sqlstate_only(Jsonb* failure) {
    const char* sqlstate = failure_member(failure, "sqlstate");
    if (sqlstate == nullptr || !core::is_sqlstate(sqlstate)) return nullptr;
    if (JB_ROOT_COUNT(failure) == 1) return failure;
    ErrorData error{};
    error.sqlerrcode = report::errcode_of(sqlstate);
    return failure_of(error);
}

// Whatever the code, the fields distinguish a replayed failure from an error that is raised now.
void raise_failure(std::string_view key, Jsonb* failure, std::optional<TimestampTz> since,
                   bool cancelled) {
    const char* message = failure_member(failure, "message");
    const char* detail = failure_member(failure, "detail");
    const char* hint = failure_member(failure, "hint");
    const int code = errcode_to_raise(failure_member(failure, "sqlstate"));
    const bool without_code = code == key_failed_code;
    if (message == nullptr)
        message = psprintf("operation \"%s\" has failed permanently", c_string(key));
    if (without_code && detail == nullptr)
        detail = "The failure is stored, and every retry receives it.";
    else if (!without_code && since)
        detail = psprintf("%s%sThe failure was stored at %s, and every retry receives it.",
                          detail == nullptr ? "" : detail, detail == nullptr ? "" : "\n",
                          timestamptz_to_str(*since));
    if (without_code && hint == nullptr)
        hint = cancelled
                   ? "Do not send the request again, not even with a new key: the caller that "
                     "gave it up may already have sent it with one."
                   : "To run the operation again, use a new key. idem.lookup() shows the "
                     "stored failure.";
    ereport(ERROR, (report::own_error("key_failed"), errcode(code), errmsg_internal("%s", message),
                    detail != nullptr ? errdetail_internal("%s", detail) : 0,
                    hint != nullptr ? errhint("%s", hint) : 0));
}

}  // namespace idem::pg
