#include "pg/request.hpp"

#include "pg/boundary.hpp"
#include "pg/compat.hpp"
#include "pg/filtered_walk.hpp"
#include "pg/report.hpp"
#include "pg/secret.hpp"

namespace idem::pg {
namespace {

using Writer = core::CanonicalWriter<core::FingerprintSink>;

std::string_view bytes_of(const JsonbValue& string) {
    return {string.val.string.val, static_cast<std::size_t>(string.val.string.len)};
}

void convert(JsonbValue& string) {
    char* converted = pg_server_to_any(string.val.string.val, string.val.string.len, PG_UTF8);
    if (converted == string.val.string.val) return;
    string.val.string.val = converted;
    string.val.string.len = static_cast<int>(strlen(converted));
}

// What counts of the request as it would be in a UTF-8 database, because fingerprints do not depend
// on the encoding: neither do strings then, nor the order of members, which is that of their names'
// bytes. The result has nothing left to leave out.
Jsonb* in_utf8(Jsonb* request, PathList exclude) {
    compat::JsonbBuilder builder;
    walk_without(request, exclude, [&](JsonbIteratorToken token, JsonbValue& value) {
        const bool item = token == WJB_KEY || token == WJB_VALUE || token == WJB_ELEM;
        if (item && value.type == jbvString) convert(value);
        const bool scalar_root = token == WJB_BEGIN_ARRAY && value.val.array.rawScalar;
        builder.push(token, item || scalar_root ? &value : nullptr);
    });
    return builder.finish();
}

// numeric_send() is the one public view of a numeric's digits: count, weight, sign and scale, then
// the digits, all 16 bits and big-endian. It takes time and room by the digits that are there, not
// by the zeros that 1e100000 would print.
void write_number(Writer& writer, Numeric number) {
    constexpr std::size_t header = 8;
    constexpr std::uint64_t negative = 0x4000;
    bytea* sent = DatumGetByteaPP(DirectFunctionCall1(numeric_send, NumericGetDatum(number)));
    const core::Bytes bytes = core::as_bytes(view_of(sent));
    writer.number({core::from_big_endian(bytes.subspan(4, 2)) == negative,
                   static_cast<std::int16_t>(core::from_big_endian(bytes.subspan(2, 2))),
                   bytes.subspan(header)});
    pfree(sent);
}

void write_scalar(Writer& writer, const JsonbValue& value) {
    switch (value.type) {
        case jbvNull:
            return writer.null();
        case jbvBool:
            return writer.boolean(value.val.boolean);
        case jbvString:
            return writer.string(bytes_of(value));
        case jbvNumeric:
            return write_number(writer, value.val.numeric);
        default:
            elog(ERROR, "unexpected jsonb value type %d", static_cast<int>(value.type));
    }
}

void walk(Writer& writer, Jsonb* request, PathList exclude) {
    bool scalar_root = false;
    walk_without(request, exclude, [&](JsonbIteratorToken token, const JsonbValue& value) {
        switch (token) {
            case WJB_BEGIN_ARRAY:
                scalar_root = value.val.array.rawScalar;
                if (!scalar_root) writer.begin_array();
                break;
            case WJB_END_ARRAY:
                if (!scalar_root) writer.end_array();
                break;
            case WJB_BEGIN_OBJECT:
                writer.begin_object();
                break;
            case WJB_END_OBJECT:
                writer.end_object();
                break;
            case WJB_KEY:
                writer.member(bytes_of(value));
                break;
            default:
                write_scalar(writer, value);
        }
    });
}

core::Fingerprint fingerprint(Jsonb* request, const Scope& scope, const core::Secret& secret,
                              std::uint32_t secret_id) {
    core::FingerprintSink sink;
    trivial<core::FingerprintSink>();
    core::Fingerprint result;
    if (!sink.begin(secret, secret_id)) report::crypto_failure();
    Writer writer(sink);
    if (GetDatabaseEncoding() == PG_UTF8)
        walk(writer, request, scope.request_exclude());
    else
        walk(writer, in_utf8(request, scope.request_exclude()), {});
    if (!sink.finish(result)) report::crypto_failure();
    return result;
}

}  // namespace

bytea* new_fingerprint(Jsonb* request, const Scope& scope) {
    if (request == nullptr) return nullptr;
    const Secrets& current = secrets();
    const auto stored =
        core::pack(fingerprint(request, scope, current.fingerprint, current.fingerprint_id));
    return cstring_to_text_with_len(reinterpret_cast<const char*>(stored.data()),
                                    static_cast<int>(stored.size()));
}

bool same_request(Jsonb* request, const bytea* stored, const Scope& scope) {
    if (request == nullptr || stored == nullptr) return request == nullptr && stored == nullptr;
    const std::string_view bytes = view_of(stored);
    core::Fingerprint bound;
    if (!core::unpack(core::as_bytes(bytes), bound)) report::unknown_fingerprint_version();
    const core::Secret secret = fingerprint_secret(bound.secret_id);
    return core::same_mac(fingerprint(request, scope, secret, bound.secret_id), bound);
}

}  // namespace idem::pg
