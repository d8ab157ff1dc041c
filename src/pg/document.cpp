#include "pg/document.hpp"

#include "core/header.hpp"
#include "pg/boundary.hpp"
#include "pg/compat.hpp"
#include "pg/report.hpp"
#include "pg/secret.hpp"

namespace idem::pg {
namespace {

using core::PathFault;

const char* words_of(PathFault fault) {
    switch (fault) {
        case PathFault::none:
            break;
        case PathFault::root:
            return "begins with \"$\", as in JSONPath";
        case PathFault::slash:
            return "has a slash, as in JSON Pointer";
        case PathFault::arrow:
            return "has an operator";
        case PathFault::bracket:
            return "has a subscript";
        case PathFault::brace:
            return "has braces, as in an array of text";
        case PathFault::comma:
            return "has a comma, as in a list of paths";
        case PathFault::wildcard:
            return "has a wildcard";
        case PathFault::index:
            return "has a number in place of a name";
        case PathFault::quote:
            return "has a double quote that does not enclose the whole name of a member";
        case PathFault::empty_step:
            return "has an empty name";
    }
    pg_unreachable();
}

// How to write the path that was meant.
const char* advice(std::string_view path, PathFault fault) {
    if (fault == PathFault::comma) return "Pass each path as an element of its own.";
    const core::PathText ours = core::translated_path(path);
    if (ours.size == 0)
        return "Write the names of members from the top, joined by dots, such as \"card.number\".";
    return psprintf("Write %s. The items of an array have no step of their own.",
                    quote_literal_cstr(report::c_string(ours.view())));
}

// In quotes, a name may contain any characters.
const char* quoting(std::string_view path) {
    const core::PathText quoted = core::quoted_name(path);
    return psprintf("If a single member has this name, write %s.",
                    quote_literal_cstr(report::c_string(quoted.view())));
}

void check_notation(const char* name, std::string_view path, int position) {
    const PathFault fault = core::path_fault(path);
    if (fault == PathFault::none) return;
    report::invalid_argument(
        name,
        psprintf("Element %d, \"%s\", %s.", position, report::c_string(path), words_of(fault)),
        psprintf("%s %s", advice(path, fault), quoting(path)));
}

using CanonicalForm = core::CanonicalWriter<core::FingerprintSink>;

std::string_view bytes_of(const JsonbValue& string) {
    return {string.val.string.val, static_cast<std::size_t>(string.val.string.len)};
}

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
            return form.string(bytes_of(value));
        case jbvNumeric:
            return write_number(form, value.val.numeric);
        default:
            elog(ERROR, "unexpected jsonb value type %d", static_cast<int>(value.type));
    }
}

// A request to be walked through: in UTF-8, and without the paths.
struct Walkable {
    Jsonb* request;
    PathList exclude;
};

Walkable walkable(Jsonb* request, PathList exclude) {
    if (GetDatabaseEncoding() == PG_UTF8) return {request, exclude};
    return {in_utf8(request, exclude), {}};
}

// Writes the events that takes(token, value) takes.
template <class Takes>
void walk(CanonicalForm& form, const Walkable& from, Takes takes) {
    bool scalar_root = false;
    walk_without(from.request, core::PathFilter(from.exclude),
                 [&](JsonbIteratorToken token, const JsonbValue& value) {
                     if (!takes(token, value)) return;
                     switch (token) {
                         case WJB_BEGIN_ARRAY:
                             scalar_root = value.val.array.rawScalar;
                             if (!scalar_root) form.begin_array();
                             break;
                         case WJB_END_ARRAY:
                             if (!scalar_root) form.end_array();
                             break;
                         case WJB_BEGIN_OBJECT:
                             form.begin_object();
                             break;
                         case WJB_END_OBJECT:
                             form.end_object();
                             break;
                         case WJB_KEY:
                             form.member(bytes_of(value));
                             break;
                         default:
                             write_scalar(form, value);
                     }
                 });
}

core::Fingerprint fingerprint(const Walkable& from, const core::Secret& secret,
                              std::uint32_t secret_id) {
    core::FingerprintSink sink;
    trivial<core::FingerprintSink>();
    core::Fingerprint result;
    if (!sink.begin(secret, secret_id)) report::crypto_failure();
    CanonicalForm form(sink);
    walk(form, from, [](JsonbIteratorToken, const JsonbValue&) { return true; });
    if (!sink.finish(result)) report::crypto_failure();
    return result;
}

// The top-level members of a request: their codes and, in UTF-8, their names, in the same order.
struct Members {
    core::MemberCodes codes;
    std::array<std::string_view, core::max_members> names;
};

// Takes of a walk the values of the top-level members, and makes a code of each.
class MemberWalk {
  public:
    MemberWalk(core::MemberCoder& coder, Members& out) : coder_(coder), out_(out) {}

    bool takes(JsonbIteratorToken token, const JsonbValue& value) {
        switch (token) {
            case WJB_BEGIN_ARRAY:
            case WJB_BEGIN_OBJECT:
                return depth_++ > 0 && !too_many_;
            case WJB_END_ARRAY:
            case WJB_END_OBJECT:
                if (--depth_ == 0) end_member();
                return depth_ > 0 && !too_many_;
            case WJB_KEY:
                if (depth_ == 1) begin_member(bytes_of(value));
                return depth_ > 1 && !too_many_;
            default:
                return !too_many_;
        }
    }
    bool too_many() const { return too_many_; }

  private:
    void begin_member(std::string_view name) {
        end_member();
        too_many_ = too_many_ || out_.codes.count == core::max_members;
        if (too_many_) return;
        if (!coder_.begin(name)) report::crypto_failure();
        out_.names[out_.codes.count] = name;
        open_ = true;
    }
    void end_member() {
        if (!open_) return;
        if (!coder_.finish(out_.codes.codes[out_.codes.count])) report::crypto_failure();
        ++out_.codes.count;
        open_ = false;
    }

    core::MemberCoder& coder_;
    Members& out_;
    int depth_ = 0;
    bool open_ = false;
    bool too_many_ = false;
};

// False if the request is no object, or has too many members. whole: as core::MemberCoder takes it.
bool read_members(const Walkable& from, const core::Secret& secret, const core::Fingerprint& whole,
                  Members& out) {
    if (!JB_ROOT_IS_OBJECT(from.request) ||
        JB_ROOT_COUNT(from.request) > core::max_members + from.exclude.size())
        return false;
    core::MemberCoder coder(secret, whole);
    trivial<core::MemberCoder>();
    CanonicalForm form(coder.sink());
    MemberWalk members(coder, out);
    walk(form, from, [&](JsonbIteratorToken token, const JsonbValue& value) {
        return members.takes(token, value);
    });
    return !members.too_many();
}

bytea* bytea_of(const core::StoredFingerprint& stored) {
    return cstring_to_text_with_len(reinterpret_cast<const char*>(stored.buffer.data()),
                                    static_cast<int>(stored.size));
}

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

[[noreturn]] void refuse_headers(const char* argument, const char* detail) {
    report::invalid_argument(
        argument, detail,
        "Write headers as an object of names with a string or an array of strings each, such as "
        "'{\"Location\": \"/payments/1\", \"Vary\": [\"Accept\", \"Origin\"]}'.");
}

std::string_view text_of_string(const JsonbValue& value) {
    Assert(value.type == jbvString);
    return {value.val.string.val, static_cast<std::size_t>(value.val.string.len)};
}

[[noreturn]] void refuse_value(const char* argument, const char* name) {
    refuse_headers(argument, psprintf("The value of the header \"%s\" is neither a string nor an "
                                      "array of strings.",
                                      name));
}

void check_header_value(const char* argument, const char* name, const JsonbValue& value) {
    if (value.type != jbvString) refuse_value(argument, name);
    if (!core::is_header_value(text_of_string(value)))
        refuse_headers(argument,
                       psprintf("The value of the header \"%s\" has a control character.", name));
}

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

bytea* new_fingerprint(Jsonb* request, const NumberedList& exclude,
                       core::FingerprintVersion version) {
    if (request == nullptr) return nullptr;
    const Secrets& current = secrets();
    const Walkable from = walkable(request, exclude.paths);
    core::Fingerprint made = fingerprint(from, current.fingerprint, current.fingerprint_id);
    made.list = exclude.number;
    if (version == core::FingerprintVersion::member_codes) {
        Members members;
        if (read_members(from, current.fingerprint, made, members))
            return bytea_of(core::pack(made, members.codes));
    }
    return bytea_of(core::pack(made));
}

bytea* without_members(bytea* stored) {
    if (stored == nullptr) return nullptr;
    const core::Bytes bytes = core::as_bytes(view_of(stored));
    core::Fingerprint rest;
    if (!core::has_version(bytes, core::FingerprintVersion::member_codes) ||
        !core::unpack(bytes, rest))
        return stored;
    return bytea_of(core::pack(rest));
}

core::ListNumber list_number(const bytea* stored) {
    return stored == nullptr ? 0 : core::list_number(core::as_bytes(view_of(stored)));
}

bytea* fingerprint_of_any() {
    return cstring_to_text_with_len(reinterpret_cast<const char*>(core::fingerprint_of_any.data()),
                                    static_cast<int>(core::fingerprint_of_any.size()));
}

bool is_of_any(const bytea* stored) {
    return stored != nullptr && core::is_of_any(core::as_bytes(view_of(stored)));
}

bool same_request(Jsonb* request, const bytea* stored, PathList exclude) {
    if (is_of_any(stored)) return true;
    if (request == nullptr || stored == nullptr) return request == nullptr && stored == nullptr;
    const std::string_view bytes = view_of(stored);
    core::Fingerprint bound;
    if (!core::unpack(core::as_bytes(bytes), bound)) report::unknown_fingerprint_version();
    const core::Secret secret = fingerprint_secret(bound.secret_id);
    return core::same_mac(fingerprint(walkable(request, exclude), secret, bound.secret_id), bound);
}

namespace {

// A name as messages and results show it: in the server's encoding, and no longer than the name of
// a column can be.
char* shown_name(std::string_view utf8) {
    const char* name = pg_any_to_server(utf8.data(), static_cast<int>(utf8.size()), PG_UTF8);
    const auto size = static_cast<int>(name == utf8.data() ? utf8.size() : strlen(name));
    return pnstrdup(name, static_cast<Size>(pg_mbcliplen(name, size, NAMEDATALEN - 1)));
}

std::span<char* const> names_of(const Members& members, const core::MemberDifferences& compared,
                                core::MemberChange change) {
    auto* names = static_cast<char**>(palloc(sizeof(char*) * core::max_members));
    std::size_t count = 0;
    for (std::size_t i = 0; i < members.codes.count; ++i)
        if (compared.changes[i] == change) names[count++] = shown_name(members.names[i]);
    return {names, count};
}

}  // namespace

const report::Differences* find_differences(Jsonb* request, const bytea* stored, PathList exclude) {
    if (request == nullptr || stored == nullptr) return nullptr;
    const core::Bytes bytes = core::as_bytes(view_of(stored));
    core::Fingerprint bound;
    core::MemberCodes before;
    if (!core::unpack(bytes, bound) || !core::unpack_members(bytes, before)) return nullptr;
    Members now;
    const core::Secret secret = fingerprint_secret(bound.secret_id);
    if (!read_members(walkable(request, exclude), secret, bound, now)) return nullptr;
    const core::MemberDifferences compared = core::compare(now.codes, before);
    auto* found = static_cast<report::Differences*>(palloc(sizeof(report::Differences)));
    *found = {.changed = names_of(now, compared, core::MemberChange::changed),
              .added = names_of(now, compared, core::MemberChange::added),
              .missing = static_cast<int>(compared.missing)};
    const bool any = !found->changed.empty() || !found->added.empty() || found->missing > 0;
    return any ? found : nullptr;
}

Jsonb* redact(Jsonb* response, PathList paths) {
    if (paths.empty()) return response;
    return without(response, core::PathFilter(paths));
}

void check_headers(const char* argument, Jsonb* headers) {
    if (!JB_ROOT_IS_OBJECT(headers)) refuse_headers(argument, "The headers are not an object.");
    JsonbIterator* iterator = JsonbIteratorInit(&headers->root);
    JsonbValue value;
    const char* name = nullptr;
    bool in_list = false;
    for (;;) {
        const JsonbIteratorToken token = JsonbIteratorNext(&iterator, &value, false);
        CHECK_FOR_INTERRUPTS();
        switch (token) {
            case WJB_DONE:
                return;
            case WJB_KEY:
                name = pnstrdup(value.val.string.val, static_cast<Size>(value.val.string.len));
                if (!core::is_header_name(text_of_string(value)))
                    refuse_headers(argument, psprintf("The name \"%s\" is not a token as in RFC "
                                                      "9110.",
                                                      name));
                break;
            case WJB_VALUE:
            case WJB_ELEM:
                check_header_value(argument, name, value);
                break;
            case WJB_BEGIN_ARRAY:
            case WJB_BEGIN_OBJECT:
                if (name != nullptr && (in_list || token == WJB_BEGIN_OBJECT))
                    refuse_value(argument, name);
                in_list = token == WJB_BEGIN_ARRAY;
                break;
            case WJB_END_ARRAY:
            case WJB_END_OBJECT:
                in_list = false;
        }
    }
}

Jsonb* redact_headers(Jsonb* headers, TextList names) {
    return without(headers, HeaderFilter{names});
}

}  // namespace idem::pg
