#include "pg/request.hpp"

#include "core/canonical.hpp"
#include "pg/boundary.hpp"
#include "pg/filtered_walk.hpp"
#include "pg/report.hpp"
#include "pg/secret.hpp"

namespace idem::pg {
namespace {

using Writer = core::Canonical<core::FingerprintSink>;

// Hands the string on in UTF-8, because fingerprints do not depend on the database's encoding. Free
// of charge in a UTF-8 database.
template <class Use>
void with_utf8(const JsonbValue& string, Use use) {
    const char* bytes = string.val.string.val;
    const int length = string.val.string.len;
    char* converted = pg_server_to_any(bytes, length, PG_UTF8);
    if (converted == bytes) return use({bytes, static_cast<std::size_t>(length)});
    use({converted, strlen(converted)});
    pfree(converted);
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
            return with_utf8(value, [&](std::string_view text) { writer.string(text); });
        case jbvNumeric:
            return write_number(writer, value.val.numeric);
        default:
            elog(ERROR, "unexpected jsonb value type %d", static_cast<int>(value.type));
    }
}

void walk(Writer& writer, Jsonb* request, const Scope& scope) {
    bool scalar_root = false;
    walk_without(request, scope.request_exclude(),
                 [&](JsonbIteratorToken token, const JsonbValue& value) {
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
                             with_utf8(value, [&](std::string_view name) { writer.member(name); });
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
    walk(writer, request, scope);
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
    if (!core::unpack(core::as_bytes(bytes), bound))
        ereport(ERROR, (errcode(ERRCODE_DATA_CORRUPTED),
                        errmsg("stored fingerprint is of an unknown version"),
                        errdetail("The record was written by a newer version of idem."),
                        errhint("Install that version of idem.")));
    const core::Secret secret = fingerprint_secret(bound.secret_id);
    return core::same_mac(fingerprint(request, scope, secret, bound.secret_id), bound);
}

}  // namespace idem::pg
