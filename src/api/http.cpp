// What HTTP makes of idem: the key in a request's header, and the status, headers and problem
// document (RFC 9457) of an error or of what idem.claim() and idem.try_claim() returned.
//
// They only compute: immutable, and safe in a parallel worker.
#include "api/arguments.hpp"
#include "core/duration.hpp"
#include "core/errors.hpp"
#include "core/key_header.hpp"
#include "pg/boundary.hpp"
#include "pg/compat.hpp"
#include "pg/document.hpp"
#include "pg/failure.hpp"
#include "pg/report.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;

enum Argument { arg_sqlstate, arg_detail };

// ---- Requests -----------------------------------------------------------------------------------

constexpr const char* key_header_hint =
    "Send one key of 1 to 255 characters in double quotes, as in Idempotency-Key: "
    "\"8e03978e-40d5-43dd-bc93-6894a57f9324\".";

const char* detail_of(const core::KeyHeader& header) {
    const std::size_t position = header.position + 1;
    switch (header.fault) {
        case core::HeaderFault::token_character:
            return psprintf("The character at position %zu is not allowed in a key without quotes.",
                            position);
        case core::HeaderFault::string_character:
            return psprintf("The character at position %zu is not printable ASCII.", position);
        case core::HeaderFault::escape:
            return psprintf(
                "The backslash before position %zu escapes neither a double quote nor "
                "a backslash.",
                position);
        case core::HeaderFault::open_string:
            return "The closing double quote is missing.";
        case core::HeaderFault::after_string:
            return psprintf("Something other than parameters follows the key at position %zu.",
                            position);
        case core::HeaderFault::parameter:
            return psprintf("There is a malformed parameter at position %zu.", position);
        case core::HeaderFault::none:
            break;
    }
    pg_unreachable();
}

// Raises ID007 unless the header contains exactly one key of an allowed length.
void check_key_header(const core::KeyHeader& header) {
    if (header.fault != core::HeaderFault::none)
        report::invalid_key("header Idempotency-Key is malformed", detail_of(header),
                            key_header_hint);
    if (header.key_size == 0)
        report::invalid_key("idempotency key must not be empty",
                            "The header Idempotency-Key contains an empty string.",
                            key_header_hint);
    if (header.key_size > core::max_key_bytes)
        report::invalid_key("idempotency key is too long",
                            psprintf("The header Idempotency-Key contains a key of %zu bytes; at "
                                     "most %zu are allowed.",
                                     header.key_size, core::max_key_bytes),
                            key_header_hint);
}

// ---- Errors -------------------------------------------------------------------------------------

std::string_view checked_sqlstate(std::optional<std::string_view> sqlstate) {
    if (!sqlstate) report::missing_argument("sqlstate");
    if (!core::is_sqlstate(*sqlstate))
        report::invalid_argument("sqlstate",
                                 "The value must consist of five characters, 0-9 and A-Z.",
                                 "Pass the SQLSTATE of an error, such as '40001'.");
    return *sqlstate;
}

void add_member(StringInfo json, const char* name, std::string_view value) {
    appendStringInfo(json, ", \"%s\": ", name);
    escape_json(json, pnstrdup(value.data(), value.size()));
}

// For errors other than idem's own, "about:blank" says that the status is all there is to know.
const char* type_of(const core::Error& error) {
    if (error.name.empty()) return "about:blank";
    return psprintf("urn:idem:problem:%s", pnstrdup(error.name.data(), error.name.size()));
}

// Through text, whose escaping the server knows: no version builds jsonb values as the last did.
Datum problem_document(const core::Error& error, int status,
                       std::optional<std::string_view> detail) {
    StringInfoData json;
    initStringInfo(&json);
    appendStringInfo(&json, "{\"status\": %d", status);
    add_member(&json, "type", type_of(error));
    add_member(&json, "title", error.title);
    add_member(&json, "sqlstate", error.sqlstate);
    if (detail) add_member(&json, "detail", *detail);
    appendStringInfoChar(&json, '}');
    return DirectFunctionCall1(jsonb_in, CStringGetDatum(json.data));
}

// ---- Results of claims --------------------------------------------------------------------------

// Of an outcome of idem.try_claim(): what its answer means to a client, as the table of errors has
// it, and whether the answer comes from the record.
struct Meaning {
    std::string_view outcome;
    std::optional<core::Error> error;
    bool replayed = false;
};

constexpr std::array meanings = std::to_array<Meaning>({
    {"claimed", std::nullopt},
    {"completed", std::nullopt, true},
    {"failed", core::own_error("key_failed"), true},
    {"in_progress", core::own_error("in_progress")},
    {"conflict", core::own_error("key_conflict")},
    {"stale_key", core::own_error("stale_key")},
    {"limited", core::own_error("limit_exceeded")},
});

// An idem.claim_result. Columns are found by their names.
class ClaimRow {
  public:
    // Raises 22004 and 22023 unless the argument is the result of a claim.
    explicit ClaimRow(FunctionCallInfo fcinfo)
        : row_(PG_ARGISNULL(0) ? nullptr : PG_GETARG_HEAPTUPLEHEADER(0)) {
        const auto outcome = row_ == nullptr ? std::nullopt : column("outcome");
        if (!outcome) report::missing_argument("result");
        const std::string_view name = pg::view_of(DatumGetTextPP(*outcome));
        meaning_ = std::ranges::find(meanings, name, &Meaning::outcome);
        if (meaning_ == meanings.end())
            report::invalid_argument("result", "The column \"outcome\" has none of its values.",
                                     "Pass what idem.claim() or idem.try_claim() returned.");
    }

    const std::optional<core::Error>& error() const { return meaning_->error; }
    bool replayed() const { return meaning_->replayed; }

    // The stored status comes first.
    int http_status() const {
        if (const auto status = column("status")) return DatumGetInt32(*status);
        return error() ? error()->http_status : 200;
    }
    Jsonb* headers() const { return jsonb("headers"); }
    std::optional<std::string_view> error_message() const {
        const char* message = pg::failure_member(jsonb("error"), "message");
        return message == nullptr ? std::nullopt : std::optional<std::string_view>(message);
    }
    // In seconds, rounded up.
    std::optional<std::int64_t> retry_after() const {
        const auto interval = column("retry_after");
        if (!interval) return std::nullopt;
        return core::whole_seconds(
            pg::nonnegative_duration("retry_after", *DatumGetIntervalP(*interval)));
    }

  private:
    std::optional<Datum> column(const char* name) const {
        bool is_null = false;
        const Datum value = GetAttributeByName(row_, name, &is_null);
        return is_null ? std::nullopt : std::optional(value);
    }
    Jsonb* jsonb(const char* name) const {
        const auto value = column(name);
        return value ? DatumGetJsonbP(*value) : nullptr;
    }

    HeapTupleHeader row_;
    const Meaning* meaning_ = nullptr;
};

// ---- Headers of responses -----------------------------------------------------------------------

// An array of objects with one member each: the order counts, and a name may occur again.
class HeaderList {
  public:
    HeaderList() { builder_.push(WJB_BEGIN_ARRAY, nullptr); }

    void add(JsonbValue name, JsonbValue value) {
        builder_.push(WJB_BEGIN_OBJECT, nullptr);
        builder_.push(WJB_KEY, &name);
        builder_.push(WJB_VALUE, &value);
        builder_.push(WJB_END_OBJECT, nullptr);
    }
    void add(const char* name, const char* value) { add(string(name), string(value)); }

    Jsonb* finish() {
        builder_.push(WJB_END_ARRAY, nullptr);
        return builder_.finish();
    }

    static JsonbValue string(const char* text) {
        JsonbValue value;
        value.type = jbvString;
        value.val.string.val = const_cast<char*>(text);
        value.val.string.len = static_cast<int>(strlen(text));
        return value;
    }

  private:
    pg::compat::JsonbBuilder builder_;
};

void add_each(HeaderList& list, const JsonbValue& name, const JsonbValue& values) {
    JsonbIterator* iterator = JsonbIteratorInit(values.val.binary.data);
    JsonbValue value;
    for (;;) {
        const JsonbIteratorToken token = JsonbIteratorNext(&iterator, &value, true);
        if (token == WJB_DONE) return;
        if (token == WJB_ELEM) list.add(name, value);
    }
}

void add_stored(HeaderList& list, Jsonb* headers) {
    pg::check_headers("result", headers);  // others may have stored them
    JsonbIterator* iterator = JsonbIteratorInit(&headers->root);
    JsonbValue name;
    JsonbValue value;
    for (;;) {
        const JsonbIteratorToken token = JsonbIteratorNext(&iterator, &name, false);
        if (token == WJB_DONE) return;
        if (token != WJB_KEY) continue;
        (void)JsonbIteratorNext(&iterator, &value, true);
        if (value.type == jbvBinary)
            add_each(list, name, value);
        else
            list.add(name, value);
    }
}

}  // namespace
}  // namespace idem::api

IDEM_FUNCTION(idem_parse_key) {
    using namespace idem;
    const auto value = pg::text_arg(fcinfo, 0);
    const core::KeyHeader header = core::read_key_header(value.value_or(""));
    if (!header.sent) PG_RETURN_NULL();
    api::check_key_header(header);
    PG_RETURN_TEXT_P(pg::text_of(header.key()));
}

IDEM_FUNCTION(idem_http_status) {
    using namespace idem;
    const auto sqlstate = api::checked_sqlstate(pg::text_arg(fcinfo, api::arg_sqlstate));
    PG_RETURN_INT32(core::error_of(sqlstate).http_status);
}

IDEM_FUNCTION(idem_problem) {
    using namespace idem;
    const auto sqlstate = api::checked_sqlstate(pg::text_arg(fcinfo, api::arg_sqlstate));
    const auto detail = pg::text_arg(fcinfo, api::arg_detail);
    if (detail) api::check_encoding(*detail);
    const core::Error error = core::error_of(sqlstate);
    return api::problem_document(error, error.http_status, detail);
}

IDEM_FUNCTION(idem_http_status_of_claim) {
    using namespace idem;
    PG_RETURN_INT32(api::ClaimRow(fcinfo).http_status());
}

IDEM_FUNCTION(idem_http_headers_of_claim) {
    using namespace idem;
    const api::ClaimRow row(fcinfo);
    api::HeaderList list;
    pg::trivial<api::ClaimRow>();
    pg::trivial<api::HeaderList>();
    if (Jsonb* headers = row.headers(); headers != nullptr) api::add_stored(list, headers);
    if (row.replayed()) list.add("Idempotency-Replayed", "true");
    if (const auto seconds = row.retry_after())
        list.add("Retry-After", psprintf("%lld", static_cast<long long>(*seconds)));
    PG_RETURN_JSONB_P(list.finish());
}

IDEM_FUNCTION(idem_problem_of_claim) {
    using namespace idem;
    const api::ClaimRow row(fcinfo);
    if (!row.error()) PG_RETURN_NULL();
    return api::problem_document(*row.error(), row.http_status(), row.error_message());
}
