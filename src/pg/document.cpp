#include "pg/document.hpp"

#include "core/header.hpp"
#include "pg/boundary.hpp"
#include "pg/compat.hpp"
#include "pg/report.hpp"
#include "pg/secret.hpp"

namespace idem::pg {
namespace {

// In quotes, a name may contain any characters.
void check_notation(const char* name, std::string_view path, int position) {
    const char* fault = core::path_fault(path);
    if (fault == nullptr) return;
    const core::PathText quoted = core::quoted_name(path);
    report::invalid_argument(
        name, psprintf("Element %d, \"%s\", %s.", position, report::c_string(path), fault),
        psprintf("Write the names of members from the top, joined by dots, such as "
                 "\"card.number\". The items of an array have no step of their own. If a single "
                 "member has this name, write %s.",
                 quote_literal_cstr(report::c_string(quoted))));
}

std::string_view string_of(const JsonbValue& string) {
    Assert(string.type == jbvString);
    return {string.val.string.val, static_cast<std::size_t>(string.val.string.len)};
}

// Calls visit(token, value) in the order of JsonbIteratorNext() for everything but the members that
// the filter excludes. Returns true when a member was left out.
template <class Filter, class Visit>
bool walk_without(Jsonb* root, Filter filter, Visit visit) {
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

// Calls use(name, value) for each member of the object, without what is in the value.
template <class Use>
void each_member(JsonbContainer* object, Use use) {
    JsonbIterator* iterator = JsonbIteratorInit(object);
    JsonbValue name;
    JsonbValue value;
    JsonbIteratorToken token;
    while ((token = JsonbIteratorNext(&iterator, &name, true)) != WJB_DONE) {
        CHECK_FOR_INTERRUPTS();
        if (token != WJB_KEY) continue;
        (void)JsonbIteratorNext(&iterator, &value, true);
        use(string_of(name), value);
    }
}

bool is_array(const JsonbValue& value) {
    return value.type == jbvBinary && JsonContainerIsArray(value.val.binary.data);
}

bool is_object(const JsonbValue& value) {
    return value.type == jbvBinary && JsonContainerIsObject(value.val.binary.data);
}

// ---- Fingerprints -------------------------------------------------------------------------------

using CanonicalForm = core::CanonicalWriter<core::FingerprintSink>;

void convert(JsonbValue& string) {
    char* converted = pg_server_to_any(string.val.string.val, string.val.string.len, PG_UTF8);
    if (converted == string.val.string.val) return;
    string.val.string.val = converted;
    string.val.string.len = static_cast<int>(strlen(converted));
}

// The request, without the excluded paths, as a UTF-8 database would hold it: its strings in UTF-8,
// and its members in the order of their names' bytes in UTF-8. So fingerprints do not depend on the
// encoding of the database.
Jsonb* in_utf8(Jsonb* request, PathList exclude) {
    compat::JsonbBuilder builder;
    walk_without(request, core::PathFilter(exclude),
                 [&](JsonbIteratorToken token, JsonbValue& value) {
                     const bool item = token == WJB_KEY || token == WJB_VALUE || token == WJB_ELEM;
                     if (item && value.type == jbvString) convert(value);
                     const bool scalar_root = token == WJB_BEGIN_ARRAY && value.val.array.rawScalar;
                     builder.push(token, item || scalar_root ? &value : nullptr);
                 });
    return builder.finish();
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
        default:
            elog(ERROR, "unexpected jsonb value type %d", static_cast<int>(value.type));
    }
}

void write(CanonicalForm& form, Jsonb* request, PathList exclude) {
    const bool scalar_root = JB_ROOT_IS_SCALAR(request);
    const auto event = [&](JsonbIteratorToken token, const JsonbValue& value) {
        switch (token) {
            case WJB_BEGIN_ARRAY:
                return scalar_root ? void() : form.begin_array();
            case WJB_END_ARRAY:
                return scalar_root ? void() : form.end_array();
            case WJB_BEGIN_OBJECT:
                return form.begin_object();
            case WJB_END_OBJECT:
                return form.end_object();
            case WJB_KEY:
                return form.member(string_of(value));
            default:
                return write_scalar(form, value);
        }
    };
    walk_without(request, core::PathFilter(exclude), event);
}

core::Fingerprint fingerprint(Jsonb* request, PathList exclude, const core::Secret& secret,
                              std::uint32_t secret_id) {
    core::FingerprintSink sink;
    trivial<core::FingerprintSink>();
    core::Fingerprint result;
    if (!sink.begin(secret, secret_id)) report::crypto_failure();
    CanonicalForm form(sink);
    if (GetDatabaseEncoding() == PG_UTF8)
        write(form, request, exclude);
    else
        write(form, in_utf8(request, exclude), {});
    if (!sink.finish(result)) report::crypto_failure();
    return result;
}

bytea* bytea_of(core::Bytes bytes) {
    return cstring_to_text_with_len(reinterpret_cast<const char*>(bytes.data()),
                                    static_cast<int>(bytes.size()));
}

}  // namespace

void check_paths(const char* name, ArrayType* paths) {
    if (ARR_NDIM(paths) > 1)
        report::invalid_argument(name, "The array must have one dimension.",
                                 "Write the paths as '{sent_at,meta.trace_id}'.");
    const TextElements elements = elements_of(paths);
    for (int i = 0; i < elements.count; ++i) {
        const std::string_view path = elements[i];
        if (path.empty() || path.size() > core::max_path_bytes)
            report::invalid_argument(name, "Each path must have 1 to 255 bytes.",
                                     "Write the paths as '{sent_at,meta.trace_id}'.");
        check_notation(name, path, i + 1);
    }
}

PathList read_paths(ArrayType* paths, MemoryContext context) {
    return read_texts(paths, context, [](std::string_view path) { return core::plain_path(path); });
}

bytea* new_fingerprint(Jsonb* request, const NumberedList& exclude) {
    if (request == nullptr) return nullptr;
    const Secrets& current = secrets();
    core::Fingerprint made =
        fingerprint(request, exclude.paths, current.fingerprint, current.fingerprint_id);
    made.list = exclude.number;
    return bytea_of(core::pack(made).bytes());
}

core::ListNumber list_number(const bytea* stored) {
    return stored == nullptr ? 0 : core::list_number(core::as_bytes(view_of(stored)));
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
    return core::same_mac(fingerprint(request, exclude, secret, bound.secret_id), bound);
}

// ---- Differences --------------------------------------------------------------------------------

namespace {

bool same_value(JsonbValue* a, JsonbValue* b) {
    return compareJsonbContainers(&JsonbValueToJsonb(a)->root, &JsonbValueToJsonb(b)->root) == 0;
}

JsonbValue* member(JsonbContainer* object, std::string_view name) {
    return getKeyJsonValueFromContainer(object, name.data(), static_cast<int>(name.size()),
                                        nullptr);
}

using Path = std::optional<core::PathText>;

void add(Differences& found, Differences::Paths& paths, const Path& path) {
    if (path && found.named() < max_differences)
        paths.text[paths.count++] = report::c_string(*path);
    else
        ++found.more;
}

// Goes no deeper than a path can name.
void compare(Differences& found, std::string_view path, JsonbContainer* given,
             JsonbContainer* stored) {
    each_member(given, [&](std::string_view name, JsonbValue& value) {
        const Path here = core::member_path(path, name);
        JsonbValue* was = member(stored, name);
        if (was == nullptr) return add(found, found.added, here);
        if (same_value(&value, was)) return;
        if (here && is_object(value) && is_object(*was))
            return compare(found, *here, value.val.binary.data, was->val.binary.data);
        add(found, found.changed, here);
    });
    each_member(stored, [&](std::string_view name, JsonbValue&) {
        if (member(given, name) == nullptr)
            add(found, found.missing, core::member_path(path, name));
    });
}

}  // namespace

// A value that is no object has no name for what differs in it.
Differences* differences(Jsonb* given, Jsonb* stored, PathList exclude) {
    if (!JB_ROOT_IS_OBJECT(given) || !JB_ROOT_IS_OBJECT(stored)) return nullptr;
    auto* found = static_cast<Differences*>(palloc0(sizeof(Differences)));
    compare(*found, {}, &redact(given, exclude)->root, &redact(stored, exclude)->root);
    return found->named() > 0 ? found : nullptr;
}

// ---- What is stored of an answer ----------------------------------------------------------------

namespace {

// Names of headers are the same in upper and lower case.
struct HeaderFilter {
    TextList names;

    void begin_object() const {}
    void end_object() const {}
    bool excludes(std::string_view member) const {
        return std::ranges::any_of(names, [member](std::string_view name) {
            return name.size() == member.size() &&
                   pg_strncasecmp(name.data(), member.data(), name.size()) == 0;
        });
    }
};

// The same pointer if the filter excludes nothing of it.
template <class Filter>
Jsonb* without(Jsonb* document, Filter filter) {
    if (document == nullptr || JB_ROOT_IS_SCALAR(document)) return document;
    compat::JsonbBuilder builder;
    const bool removed =
        walk_without(document, filter, [&](JsonbIteratorToken token, JsonbValue& value) {
            const bool has_value = token == WJB_KEY || token == WJB_VALUE || token == WJB_ELEM;
            builder.push(token, has_value ? &value : nullptr);
        });
    return removed ? builder.finish() : document;
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

Jsonb* redact(Jsonb* response, PathList paths) {
    if (paths.empty()) return response;
    return without(response, core::PathFilter(paths));
}

void check_headers(const char* argument, Jsonb* headers) {
    if (!JB_ROOT_IS_OBJECT(headers)) refuse_headers(argument, "The headers are not an object.");
    each_member(&headers->root, [argument](std::string_view token, const JsonbValue& value) {
        const char* name = report::c_string(token);
        if (!core::is_header_name(token))
            refuse_headers(argument,
                           psprintf("The name \"%s\" is not a token as in RFC 9110.", name));
        if (!is_array(value)) return check_header_value(argument, name, value);
        JsonbContainer* array = value.val.binary.data;
        for (std::uint32_t i = 0; i < JsonContainerSize(array); ++i)
            check_header_value(argument, name, *getIthJsonbValueFromContainer(array, i));
    });
}

Jsonb* redact_headers(Jsonb* headers, TextList names) {
    return without(headers, HeaderFilter{names});
}

}  // namespace idem::pg
