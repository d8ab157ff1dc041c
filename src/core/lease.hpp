// What a leased token is still good for: the fencing rules.
//
// A token names one attempt of one key by its number and its random bits. The row says which
// attempt is the current one; an older token is fenced off, whatever it asks. A late worker that
// nobody overtook keeps its rights: the end of the lease only allows others to take over.
// Times are microseconds on one clock, read after the key lock was granted. Pure; nothing thrown.
#pragma once

#include "core/decision.hpp"

namespace idem::core {

enum class Standing {
    holds,     // the token's attempt is the current one, and unfinished
    finished,  // this very attempt was completed or failed
    lost,      // fenced: overtaken, released, expired, exhausted, or never there
};

struct Tenure {
    bool binds;         // there is a row that binds the key: unexpired, or this transaction's own
    bool same_attempt;  // its attempt and its random bits are the token's
    State state;
    std::int32_t attempt;
    std::int64_t lease_end;
    std::optional<std::int32_t> max_attempts;
};

constexpr Standing standing(const Tenure& tenure, std::int64_t now) noexcept {
    if (!tenure.binds || !tenure.same_attempt) return Standing::lost;
    if (tenure.state != State::in_progress) return Standing::finished;
    if (exhausted(tenure.attempt, tenure.max_attempts, tenure.lease_end, now))
        return Standing::lost;
    return Standing::holds;
}

}  // namespace idem::core
