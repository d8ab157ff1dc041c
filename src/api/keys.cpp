// idem.new_key(), idem.child_key() and idem.current_key(): keys for callers without keys of their
// own, for the services that an operation calls, and for the rows that it writes. They write
// nothing, so they work on a standby. idem.derive_key() is SQL.
#include "api/arguments.hpp"
#include "api/lease.hpp"
#include "pg/open_claims.hpp"
#include "pg/store/secret.hpp"
#include "pg/store/token.hpp"

namespace idem::api {

IDEM_FUNCTION(idem_new_key) {
    (void)fcinfo;
    // The time of the newest UUIDv7 of this backend, so that its keys always ascend.
    static constinit std::uint64_t last_tick = 0;
    const std::int64_t now = GetCurrentTimestamp() + pg::postgres_epoch;
    last_tick = core::next_uuid_tick(last_tick, now);
    const core::UuidText key = core::uuid_v7(last_tick, pg::random_bits());
    PG_RETURN_TEXT_P(pg::text_of({key.data(), key.size()}));
}

IDEM_FUNCTION(idem_child_key) {
    const core::Token token = pg::read_token(pg::text_arg(fcinfo, 0));
    auto step = pg::text_arg(fcinfo, 1);
    if (!step) report::missing_argument("step");
    if (step->empty() || step->size() > core::max_key_bytes)
        report::invalid_argument("step", "The name of a step must have 1 to 255 bytes.",
                                 "Pass a short name of the step, such as 'charge'.");
    check_encoding(*step);
    step = utf8(*step);
    // Every caller that knows a key can compute its digest, and so make up a token for it.
    check_usable(token);
    core::KeyText key;
    if (!core::child_key(pg::secrets().seed, token.digest, *step, key)) report::crypto_failure();
    PG_RETURN_TEXT_P(pg::text_of({key.data(), key.size()}));
}

// A parallel worker does not know the claims of its leader, so it must not answer.
IDEM_FUNCTION(idem_current_key) {
    (void)fcinfo;
    require_leader("current_key");
    const pg::Claim* claim = pg::newest_open_claim();
    if (claim == nullptr) PG_RETURN_NULL();
    PG_RETURN_TEXT_P(pg::text_of(claim->key));
}

}  // namespace idem::api
