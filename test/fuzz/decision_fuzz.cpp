// Takes any row that a claim or a token may find, and any limits. Checks the decisions against what
// each of them promises, and the arithmetic of attempts against 64-bit numbers.
#include "core/decision.hpp"

#include <algorithm>

#include "core/duration.hpp"
#include "input.hpp"

using namespace idem::core;

namespace {

// What a row can hold: attempts are counted from 1, limits are at least 1, and times are those of
// timestamps, so that none is near the end of the 64 bits.
struct Row {
    std::int32_t attempt;
    std::optional<std::int32_t> max_attempts;
    std::int32_t extra_attempts;
    std::int64_t lease_end;
    std::int64_t now;
};

// Small numbers are often equal, or next to each other.
Row read_row(Input& in) {
    const bool small = in.byte() % 2 != 0;
    const std::int64_t most = small ? 7 : INT32_MAX - 1;
    const std::int64_t latest = small ? 7 : max_duration;
    const auto attempt = static_cast<std::int32_t>(1 + in.number_to(most));
    const auto limit = static_cast<std::int32_t>(1 + in.number_to(most));
    return {attempt, in.byte() % 4 == 0 ? std::nullopt : std::optional(limit),
            static_cast<std::int32_t>(in.number_to(most)), in.number_to(latest),
            in.number_to(latest)};
}

bool is_used_up(const Row& row, std::int32_t extra_attempts) {
    const std::int64_t allowed = std::int64_t{row.max_attempts.value_or(0)} + extra_attempts;
    return row.max_attempts && row.attempt >= allowed;
}

// An administrator's grant: the next attempt may begin, no attempt is lost, and a second grant for
// the same attempt adds nothing.
void check_attempts(const Row& row) {
    require(is_last_attempt(row.attempt, row.max_attempts, row.extra_attempts) ==
            is_used_up(row, row.extra_attempts));
    const std::int32_t granted =
        granted_attempts(row.attempt, row.max_attempts, row.extra_attempts);
    require(granted >= row.extra_attempts && !is_used_up(row, granted));
    require(granted == row.extra_attempts || is_used_up(row, granted - 1));
    require(granted_attempts(row.attempt, row.max_attempts, granted) == granted);
}

FoundRow read_found(const Row& row, Input& in) {
    constexpr State states[] = {State::in_progress, State::completed, State::failed};
    FoundRow found{};
    found.presence = static_cast<Presence>(in.byte() % 5);
    found.state = states[in.byte() % 3];
    const unsigned flags = in.byte();
    found.in_snapshot = flags & 1;
    found.replaced = flags & 2;
    found.expires = in.number_to(max_duration);
    found.attempt = row.attempt;
    found.max_attempts = row.max_attempts;
    found.extra_attempts = row.extra_attempts;
    found.lease_end = row.lease_end;
    return found;
}

bool is_live(const FoundRow& found, std::int64_t now) {
    if (found.presence == Presence::own) return true;
    return found.presence != Presence::absent && found.expires > now;
}

// A claim that is granted finds no live row, or one that may have another attempt; a stored answer
// is that of a live row.
void check_claim(const Row& row, const FoundRow& seen, bool same_request) {
    const Verdict verdict = decide(seen, SameRequest{same_request}, row.now);

    const bool own = seen.presence == Presence::own;
    const bool committed = seen.presence == Presence::committed;
    const bool live = is_live(seen, row.now) && seen.presence != Presence::inserting;
    const bool unfinished = seen.state == State::in_progress;
    const bool readable = live && same_request && (own || seen.in_snapshot);
    switch (verdict) {
        case Verdict::claim:
            return require(!live && seen.presence != Presence::inserting);
        case Verdict::in_flight:
            return require(!own && !committed);
        case Verdict::serialization_failure:
            return require(live && !own && !seen.in_snapshot);
        case Verdict::conflict:
            return require(live && !same_request);
        case Verdict::replay:
            return require(readable && seen.state == State::completed);
        case Verdict::failed:
            return require(readable && seen.state == State::failed);
        case Verdict::leased:
            return require(readable && unfinished && seen.lease_end > row.now);
        case Verdict::exhausted:
            return require(readable && unfinished && is_used_up(row, row.extra_attempts) &&
                           seen.lease_end <= row.now);
        case Verdict::take_over:
            return require(readable && unfinished && (own || committed) &&
                           !is_used_up(row, row.extra_attempts) && seen.lease_end <= row.now);
    }
    require(false);
}

// A token that holds is that of the row's attempt, whether or not another one would be allowed.
void check_token(const Row& row, const FoundRow& seen, bool same_attempt) {
    const TokenStanding standing = judge_token(seen, same_attempt, row.now);
    const bool bound = is_live(seen, row.now) && same_attempt;
    const bool unfinished = seen.state == State::in_progress;
    require((standing == TokenStanding::finished) == (bound && !unfinished));
    require((standing == TokenStanding::holds) == (bound && unfinished));
}

// An answer expires at one moment, which a longer answer_ttl does not bring nearer.
void check_answer(const Row& row, Input& in) {
    const std::int64_t created = in.number_to(max_duration);
    const bool leased = in.byte() % 2 != 0;
    const std::int64_t answered =
        answered_at(created, leased ? std::optional(row.lease_end) : std::nullopt);
    require(answered == (leased ? row.lease_end : created));
    const std::int64_t ttl = 1 + in.number_to(max_duration - 1);
    require(!is_answer_expired(answered, std::nullopt, row.now));
    require(is_answer_expired(answered, ttl, answered + ttl));
    require(!is_answer_expired(answered, ttl, answered + ttl - 1));
    require(!is_answer_expired(answered, ttl, row.now) ||
            is_answer_expired(answered, std::max<std::int64_t>(1, ttl / 2), row.now));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const char* data, std::size_t size) {
    Input in({data, size});
    const Row row = read_row(in);
    check_attempts(row);
    const FoundRow found = read_found(row, in);
    const bool same = in.byte() % 2 != 0;
    check_claim(row, found, same);
    check_token(row, found, same);
    check_answer(row, in);
    return 0;
}
