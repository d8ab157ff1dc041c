// idem.new_key(), idem.child_key() and idem.current_key(): keys for callers without keys of their
// own, for the services that an operation calls, and for the rows that it writes. They write
// nothing, so they work on a standby. idem.derive_key() is SQL.
#include "api/arguments.hpp"
#include "api/lease.hpp"
#include "core/new_key.hpp"
#include "pg/open_claims.hpp"
#include "pg/server/report.hpp"
#include "pg/server/values.hpp"
#include "pg/store/secret.hpp"
#include "pg/store/token.hpp"

namespace idem::api {
namespace {

namespace report = pg::report;

constexpr std::size_t max_step_bytes = 255;

enum ChildKeyArgument { arg_token, arg_step };

// The time of the newest UUIDv7 of this backend, so that its keys always ascend.
constinit std::uint64_t last_tick = 0;

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
    api::require_leader("current_key");
    const pg::Claim* claim = pg::newest_open_claim();
    if (claim == nullptr) PG_RETURN_NULL();
    PG_RETURN_TEXT_P(pg::text_of(claim->key));
}
