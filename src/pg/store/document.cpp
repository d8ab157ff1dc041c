#include "pg/store/document.hpp"

#include "core/header.hpp"
#include "pg/server/catalog.hpp"
#include "pg/server/compat.hpp"
#include "pg/store/secret.hpp"

extern "C" {
#include "utils/numeric.h"
}

namespace idem::pg {
namespace {

// In quotes, a name may contain any characters.
void check_notation(const char* name, std::string_view path, int position) {
    const auto [fault, none] =
        call_internal("path_fault", {{TEXTOID, PointerGetDatum(text_of(path))}});
    if (none) return;
    const core::PathText quoted = core::quoted_name(path);
    report::invalid_argument(
        name,
        psprintf("Element %d, \"%s\", %s.", position, report::c_string(path),
                 TextDatumGetCString(fault)),
        psprintf("Write the names of members from the top, joined by dots, such as "
                 "\"card.number\". The items of an array have no step of their own. If a single "
                 "member has this name, write %s.",
                 quote_literal_cstr(report::c_string(quoted))));
}

// Calls visit(token, value) in the order of JsonbIteratorNext() for everything but the members that
// the paths name. Returns true when a member was left out.
template <class Visit>
bool walk_without(Jsonb* root, PathList paths, Visit visit) {
    core::PathFilter filter(paths);
    JsonbIterator* iterator = JsonbIteratorInit(&root->root);
    JsonbValue value;
    bool any = false;
    JsonbIteratorToken token;
    while ((token = JsonbIteratorNext(&iterator, &value, false)) != WJB_DONE) {
        CHECK_FOR_INTERRUPTS();
        if (token == WJB_BEGIN_OBJECT) filter.begin_object();
        if (token == WJB_END_OBJECT) filter.end_object();
        if (token == WJB_KEY && filter.excludes(string_of(value))) {
            any = true;
            (void)JsonbIteratorNext(&iterator, &value, true);  // the whole value of the member
        } else {
            visit(token, value);
        }
    }
    return any;
}

// What is left of the document without the members that the paths name, with each name and value as
// change(value) leaves it. removed: whether there was such a member.
template <class Change>
Jsonb* rebuilt_without(Jsonb* document, PathList paths, bool& removed, Change change) {
    compat::JsonbBuilder builder;
    removed = walk_without(document, paths, [&](JsonbIteratorToken token, JsonbValue& value) {
        const bool item = token == WJB_KEY || token == WJB_VALUE || token == WJB_ELEM;
        if (item) change(value);
        const bool scalar_root = token == WJB_BEGIN_ARRAY && value.val.array.rawScalar;
        builder.push(token, item || scalar_root ? &value : nullptr);
    });
    return builder.finish();
}

// ---- Fingerprints -------------------------------------------------------------------------------

using CanonicalForm = core::CanonicalWriter<core::Hmac>;

void convert(JsonbValue& value) {
    if (value.type != jbvString) return;
    char* converted = pg_server_to_any(value.val.string.val, value.val.string.len, PG_UTF8);
    if (converted == value.val.string.val) return;
    value.val.string.val = converted;
    value.val.string.len = static_cast<int>(strlen(converted));
}

// numeric_send() is the only public view of a numeric's digits: count, weight, sign and scale, then
// the digits, each 16 bits and big-endian. Its time and size grow with the digits that are stored,
// not with the zeros that 1e100000 would print.
void write_number(CanonicalForm& form, Numeric number) {
    constexpr std::size_t header = 8;
    constexpr std::uint64_t negative = 0x4000;
    bytea* sent = DatumGetByteaPP(DirectFunctionCall1(numeric_send, NumericGetDatum(number)));
    const core::Bytes bytes = core::as_bytes(view_of(sent));
    form.number({core::from_big_endian(bytes.subspan(4, 2)) == negative,
                 static_cast<std::int16_t>(core::from_big_endian(bytes.subspan(2, 2))),
                 bytes.subspan(header)});
    pfree(sent);
}

void write_scalar(CanonicalForm& form, const JsonbValue& value) {
    switch (value.type) {
        case jbvNull:
            return form.null();
        case jbvBool:
            return form.boolean(value.val.boolean);
        case jbvString:
            return form.string(string_of(value));
        case jbvNumeric:
            return write_number(form, value.val.numeric);
        default:  // a container, or a type of a later server
            elog(ERROR, "unexpected jsonb value type %d", static_cast<int>(value.type));
    }
}

void write(CanonicalForm& form, Jsonb* request, PathList exclude) {
    const bool scalar_root = JB_ROOT_IS_SCALAR(request);
    const auto event = [&](JsonbIteratorToken token, const JsonbValue& value) {
        switch (token) {
            case WJB_BEGIN_ARRAY:
                if (!scalar_root) form.begin_array();
                return;
            case WJB_END_ARRAY:
                if (!scalar_root) form.end_array();
                return;
            case WJB_BEGIN_OBJECT:
                return form.begin_object();
            case WJB_END_OBJECT:
                return form.end_object();
            case WJB_KEY:
                return form.member(string_of(value));
            default:  // WJB_VALUE or WJB_ELEM, whose type write_scalar() checks
                return write_scalar(form, value);
        }
    };
    walk_without(request, exclude, event);
}

// In another encoding, the request is rebuilt as a UTF-8 database would hold it: its strings in
// UTF-8, and its members in the order of their names' bytes in UTF-8. So fingerprints do not depend
// on the encoding of the database.
core::Fingerprint fingerprint(Jsonb* request, PathList exclude, const core::Secret& secret,
                              std::uint32_t secret_id) {
    core::Hmac hmac(secret);
    trivial<core::Hmac>();
    CanonicalForm form(hmac);
    bool removed;
    if (GetDatabaseEncoding() == PG_UTF8)
        write(form, request, exclude);
    else
        write(form, rebuilt_without(request, exclude, removed, convert), {});
    core::Fingerprint result{0, secret_id, {}};
    if (!hmac.finish(result.mac)) report::crypto_failure();
    return result;
}

void trim_number(JsonbValue& value) {
    if (value.type == jbvNumeric)
        value.val.numeric = DatumGetNumeric(
            DirectFunctionCall1(numeric_trim_scale, NumericGetDatum(value.val.numeric)));
}

// As idem_internal.fingerprint() of the SQL edition.
core::Fingerprint text_fingerprint(Jsonb* request, PathList exclude, const core::Secret& secret) {
    bool removed;
    Jsonb* rest = rebuilt_without(request, exclude, removed, trim_number);
    char* printed = JsonbToCString(nullptr, &rest->root, static_cast<int>(VARSIZE(rest)));
    const int length = static_cast<int>(strlen(printed));
    const char* utf8 = pg_server_to_any(printed, length, PG_UTF8);
    core::Sha256 hash;
    trivial<core::Sha256>();
    hash.write(secret);
    hash.write(core::as_bytes(std::string_view(utf8)));
    core::Fingerprint result{};
    if (!hash.finish(result.mac)) report::crypto_failure();
    return result;
}

bytea* bytea_of(core::Bytes bytes) {
    return cstring_to_text_with_len(reinterpret_cast<const char*>(bytes.data()),
                                    static_cast<int>(bytes.size()));
}

[[noreturn]] void refuse_headers(const char* argument, const char* detail) {
    report::invalid_argument(
        argument, detail,
        "Write headers as an object of names with a string or an array of strings each, such as "
        "'{\"Location\": \"/payments/1\", \"Vary\": [\"Accept\", \"Origin\"]}'.");
}

void check_header_value(const char* argument, const char* name, const JsonbValue& value) {
    if (value.type != jbvString)
        refuse_headers(argument,
                       psprintf("The value of the header \"%s\" is neither a string nor an array "
                                "of strings.",
                                name));
    if (!core::is_header_value(string_of(value)))
        refuse_headers(argument,
                       psprintf("The value of the header \"%s\" has a control character.", name));
}

}  // namespace

TextList texts_of(ArrayType* array) {
    const auto [values, nulls] = elements_of(array);
    const std::size_t size = values.size();
    auto* texts = static_cast<std::string_view*>(palloc0(sizeof(std::string_view) * (size + 1)));
    for (std::size_t i = 0; i < size; ++i)
        if (!nulls[i]) texts[i] = view_of(DatumGetTextPP(values[i]));
    return {texts, size};
}

void check_paths(const char* name, ArrayType* paths) {
    if (ARR_NDIM(paths) > 1)
        report::invalid_argument(name, "The array must have one dimension.",
                                 "Write the paths as '{sent_at,meta.trace_id}'.");
    int position = 0;
    for (const std::string_view path : texts_of(paths)) {
        if (path.empty() || path.size() > core::max_path_bytes)
            report::invalid_argument(name, "Each path must have 1 to 255 bytes.",
                                     "Write the paths as '{sent_at,meta.trace_id}'.");
        check_notation(name, path, ++position);
    }
}

PathList read_paths(ArrayType* paths) {
    const TextList texts = texts_of(paths);
    auto* plain =
        static_cast<std::string_view*>(palloc(sizeof(std::string_view) * (texts.size() + 1)));
    std::ranges::transform(texts, plain, [](std::string_view path) {
        return std::string_view(report::c_string(core::plain_path(path)));
    });
    return {plain, texts.size()};
}

bytea* new_fingerprint(Jsonb* request, const NumberedList& exclude) {
    if (request == nullptr) return nullptr;
    const Secrets& current = secrets();
    core::Fingerprint made =
        fingerprint(request, exclude.paths, current.fingerprint, current.fingerprint_id);
    made.list = exclude.number;
    return bytea_of(core::pack(made).bytes());
}

bytea* fingerprint_of_any() {
    return bytea_of(core::fingerprint_of_any);
}

bool is_of_any(const bytea* stored) {
    return stored != nullptr && core::is_of_any(core::as_bytes(view_of(stored)));
}

bool same_request(Jsonb* request, const bytea* stored, PathList exclude) {
    if (is_of_any(stored)) return true;
    if (request == nullptr || stored == nullptr) return request == nullptr && stored == nullptr;
    core::Fingerprint bound;
    if (!core::unpack(core::as_bytes(view_of(stored)), bound))
        ereport(ERROR, (errcode(ERRCODE_DATA_CORRUPTED),
                        errmsg("stored fingerprint is of an unknown version"),
                        errdetail("The record was written by a newer version of idem."),
                        errhint("Install that version of idem.")));
    const core::Secret secret = fingerprint_secret(bound.secret_id);
    return core::same_mac(bound.form == core::FingerprintForm::text
                              ? text_fingerprint(request, exclude, secret)
                              : fingerprint(request, exclude, secret, bound.secret_id),
                          bound);
}

// ---- What is stored of an answer ----------------------------------------------------------------

Jsonb* redact(Jsonb* response, PathList paths) {
    if (response == nullptr || paths.empty()) return response;
    bool removed;
    Jsonb* rest = rebuilt_without(response, paths, removed, [](JsonbValue&) {});
    return removed ? rest : response;
}

void check_headers(const char* argument, Jsonb* headers) {
    if (!JB_ROOT_IS_OBJECT(headers)) refuse_headers(argument, "The headers are not an object.");
    each_member(&headers->root, [argument](std::string_view token, const JsonbValue& value) {
        const char* name = report::c_string(token);
        if (!core::is_header_name(token))
            refuse_headers(argument,
                           psprintf("The name \"%s\" is not a token as in RFC 9110.", name));
        JsonbContainer* array = value.type == jbvBinary ? value.val.binary.data : nullptr;
        if (array == nullptr || !JsonContainerIsArray(array))
            return check_header_value(argument, name, value);
        for (std::uint32_t i = 0; i < JsonContainerSize(array); ++i)
            check_header_value(argument, name, *getIthJsonbValueFromContainer(array, i));
    });
}

// Names of headers are the same in upper and lower case.
Jsonb* redact_headers(Jsonb* headers, TextList names) {
    if (headers == nullptr) return nullptr;
    Datum rest = JsonbPGetDatum(headers);
    each_member(&headers->root, [&](std::string_view member, const JsonbValue&) {
        const bool excluded = std::ranges::any_of(names, [member](std::string_view name) {
            return name.size() == member.size() &&
                   pg_strncasecmp(name.data(), member.data(), name.size()) == 0;
        });
        if (excluded)
            rest = DirectFunctionCall2(jsonb_delete, rest, PointerGetDatum(text_of(member)));
    });
    return DatumGetJsonbP(rest);
}

}  // namespace idem::pg
