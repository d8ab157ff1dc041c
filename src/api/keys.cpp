// idem.new_key(), idem.derive_key(), idem.child_key() and idem.current_key(): keys for callers
// without keys of their own, for the services that an operation calls, and for the rows that it
// writes. They write nothing, so they work on a standby.
#include "api/arguments.hpp"
#include "api/lease.hpp"
#include "core/new_key.hpp"
#include "pg/boundary.hpp"
#include "pg/open_claims.hpp"
#include "pg/report.hpp"
#include "pg/secret.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;

constexpr std::size_t max_step_bytes = 255;

enum ChildKeyArgument { arg_token, arg_step };

// The time of the newest UUIDv7 of this backend, so that its keys always ascend.
constinit std::uint64_t last_tick = 0;

// The parts, checked and in UTF-8. An array of several dimensions is refused, because a flat list
// would not tell where its rows end.
std::span<const std::string_view> checked_parts(FunctionCallInfo fcinfo) {
    ArrayType* array = pg::array_arg(fcinfo, 0);
    if (array == nullptr) report::missing_argument("parts");
    if (ARR_NDIM(array) != 1)
        report::invalid_argument(
            "parts", "The array must have one dimension and at least one element.",
            "Pass the parts as arguments of their own, or one array of them after VARIADIC.");
    Datum* elements;
    bool* nulls;
    int count;
    deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &elements, &nulls, &count);
    auto* parts =
        static_cast<std::string_view*>(palloc(sizeof(std::string_view) * static_cast<Size>(count)));
    for (int i = 0; i < count; ++i) {
        if (nulls[i])
            ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
                            errmsg("part %d of a key must not be null", i + 1),
                            errdetail("A null part does not help to identify the operation."),
                            errhint("Leave the part out, or pass an empty string if that is what "
                                    "it means.")));
        const std::string_view part = pg::view_of(DatumGetTextPP(elements[i]));
        check_encoding(part);
        parts[i] = utf8(part);
    }
    return {parts, static_cast<std::size_t>(count)};
}

std::string_view checked_step(std::optional<std::string_view> step) {
    if (!step) report::missing_argument("step");
    if (step->empty() || step->size() > max_step_bytes)
        report::invalid_argument("step", "The name of a step must have 1 to 255 bytes.",
                                 "Pass a short name of the step, such as 'charge'.");
    check_encoding(*step);
    return utf8(*step);
}

}  // namespace
}  // namespace idem::api

IDEM_FUNCTION(idem_new_key) {
    using namespace idem;
    (void)fcinfo;
    const std::int64_t now = GetCurrentTimestamp() + pg::postgres_epoch;
    api::last_tick = core::next_uuid_tick(api::last_tick, now);
    const core::UuidText key = core::uuid_v7(api::last_tick, pg::random_bits());
    PG_RETURN_TEXT_P(pg::text_of({key.data(), key.size()}));
}

IDEM_FUNCTION(idem_derive_key) {
    using namespace idem;
    core::KeyText key;
    if (!core::derive_key(api::checked_parts(fcinfo), key)) pg::report::crypto_failure();
    PG_RETURN_TEXT_P(pg::text_of({key.data(), key.size()}));
}

IDEM_FUNCTION(idem_child_key) {
    using namespace idem;
    const core::Token token = pg::read_token(pg::text_arg(fcinfo, api::arg_token));
    const std::string_view step = api::checked_step(pg::text_arg(fcinfo, api::arg_step));
    // Every caller that knows a key can compute its digest, and so make up a token for it.
    api::check_usable(token);
    core::KeyText key;
    if (!core::child_key(pg::secrets().seed, token.digest, step, key)) pg::report::crypto_failure();
    PG_RETURN_TEXT_P(pg::text_of({key.data(), key.size()}));
}

// A parallel worker does not know the claims of its leader, so it must not answer.
IDEM_FUNCTION(idem_current_key) {
    using namespace idem;
    (void)fcinfo;
    api::require_leader("idem.current_key()");
    const pg::Claim* claim = pg::newest_open_claim();
    if (claim == nullptr) PG_RETURN_NULL();
    PG_RETURN_TEXT_P(pg::text_of(claim->key));
}
