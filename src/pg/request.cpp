#include "pg/request.hpp"

#include "core/canonical.hpp"
#include "core/path_filter.hpp"
#include "pg/boundary.hpp"
#include "pg/report.hpp"
#include "pg/secret.hpp"

namespace idem::pg {
namespace {

// Fingerprints do not depend on the database's encoding. Free of charge in a UTF-8 database.
std::string_view utf8(const JsonbValue& string) {
    const char* bytes = string.val.string.val;
    const int length = string.val.string.len;
    const char* converted = pg_server_to_any(bytes, length, PG_UTF8);
    const std::size_t size =
        converted == bytes ? static_cast<std::size_t>(length) : strlen(converted);
    return {converted, size};
}

// numeric_send() is the one public view of a numeric's digits: count, weight, sign and scale, then
// the digits, all 16 bits and big-endian. It takes time and room by the digits that are there, not
// by the zeros that 1e100000 would print.
core::Decimal decimal(Numeric number) {
    constexpr std::size_t header = 8;
    constexpr std::uint64_t negative = 0x4000;
    const bytea* sent = DatumGetByteaPP(DirectFunctionCall1(numeric_send, NumericGetDatum(number)));
    const core::Bytes bytes(reinterpret_cast<const std::byte*>(VARDATA_ANY(sent)),
                            static_cast<std::size_t>(VARSIZE_ANY_EXHDR(sent)));
    return {core::from_big_endian(bytes.subspan(4, 2)) == negative,
            static_cast<std::int16_t>(core::from_big_endian(bytes.subspan(2, 2))),
            bytes.subspan(header)};
}

using Writer = core::Canonical<core::FingerprintSink>;

void write_scalar(Writer& writer, const JsonbValue& value) {
    switch (value.type) {
        case jbvNull:
            return writer.null();
        case jbvBool:
            return writer.boolean(value.val.boolean);
        case jbvString:
            return writer.string(utf8(value));
        case jbvNumeric:
            return writer.number(decimal(value.val.numeric));
        default:
            elog(ERROR, "unexpected jsonb value type %d", static_cast<int>(value.type));
    }
}

void walk(Writer& writer, Jsonb* request, const Scope& scope) {
    core::PathFilter filter(scope.request_exclude());
    JsonbIterator* iterator = JsonbIteratorInit(&request->root);
    JsonbValue value;
    bool skip_nested = false;
    bool scalar_root = false;
    bool left_out = false;
    for (;;) {
        const JsonbIteratorToken token = JsonbIteratorNext(&iterator, &value, skip_nested);
        if (token == WJB_DONE) return;
        if (left_out) {  // this was the value of a member that does not count
            left_out = skip_nested = false;
            continue;
        }
        switch (token) {
            case WJB_BEGIN_ARRAY:
                scalar_root = value.val.array.rawScalar;
                if (!scalar_root) writer.begin_array();
                break;
            case WJB_END_ARRAY:
                if (!scalar_root) writer.end_array();
                break;
            case WJB_BEGIN_OBJECT:
                filter.begin_object();
                writer.begin_object();
                break;
            case WJB_END_OBJECT:
                filter.end_object();
                writer.end_object();
                break;
            case WJB_KEY:
                left_out = skip_nested = filter.excludes(utf8(value));
                if (!left_out) writer.member(utf8(value));
                break;
            default:
                write_scalar(writer, value);
        }
        CHECK_FOR_INTERRUPTS();
    }
}

// The walk leaves its litter (numbers, conversions) in a context of its own.
core::Fingerprint fingerprint(Jsonb* request, const Scope& scope, const core::Secret& secret,
                              std::uint32_t secret_id) {
    core::FingerprintSink sink;
    trivial<core::FingerprintSink>();
    core::Fingerprint result;
    if (!sink.begin(secret, secret_id)) report::crypto_failure();
    Writer writer(sink);
    MemoryContext litter =
        AllocSetContextCreate(CurrentMemoryContext, "idem request", ALLOCSET_SMALL_SIZES);
    MemoryContext before = MemoryContextSwitchTo(litter);
    walk(writer, request, scope);
    MemoryContextSwitchTo(before);
    MemoryContextDelete(litter);
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
