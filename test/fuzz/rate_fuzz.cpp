// Takes any sequence of claims and pauses. Checks each decision, and the advised wait, against a
// bucket that counts tokens in fractions; and that a clock that jumps costs a tenant little.
#include <algorithm>

#include "core/rate.hpp"
#include "input.hpp"

using namespace idem::core;

namespace {

__extension__ using Wide = __int128;

// Each microsecond adds per_minute fractions; a claim takes 60 million.
struct TokenBucket {
    Wide per_minute;
    Wide fractions = per_minute * usecs_per_minute;
    std::int64_t filled = 0;

    // 0, or the wait in microseconds.
    Wide charge(std::int64_t now) {
        fractions =
            std::min(fractions + per_minute * (now - filled), per_minute * usecs_per_minute);
        filled = now;
        const Wide missing = usecs_per_minute - fractions;
        if (missing > 0) return (missing + per_minute - 1) / per_minute;
        fractions -= usecs_per_minute;
        return 0;
    }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const char* data, std::size_t size) {
    Input in({data, size});
    constexpr std::int32_t limits[] = {1, 2, 3, 7, 59, 60, 61, 600, 59'999'999, INT32_MAX};
    const unsigned choice = in.byte();
    const auto per_minute = choice < std::size(limits)
                                ? limits[choice]
                                : static_cast<std::int32_t>(1 + in.number_to(INT32_MAX - 1));
    std::int64_t now = in.number_to(INT64_MAX / 4);

    Bucket bucket;
    TokenBucket tokens{.per_minute = per_minute, .filled = now};
    while (!in.done()) {
        const unsigned step = in.byte();
        now += step < 128 ? step
                          : in.number_to(step < 192 ? usecs_per_minute / 8 : 3 * usecs_per_minute);
        const Bucket before = bucket;
        const std::int64_t wait = charge(bucket, per_minute, now);
        require(wait == tokens.charge(now));
        if (wait == 0) continue;
        require(bucket.arrival == before.arrival && bucket.fraction == before.fraction);
        Bucket later = bucket;
        require(charge(later, per_minute, now + wait) == 0);
        Bucket earlier = bucket;
        require(charge(earlier, per_minute, now + wait - 1) == 1);
    }

    // Whatever the clock shows and whatever limit follows, the wait is at most two minutes, plus
    // what is rounded up.
    const auto any_time = static_cast<std::int64_t>(in.number());
    for (const std::int32_t limit : limits) {
        Bucket moved = bucket;
        const std::int64_t wait = charge(moved, limit, any_time);
        require(wait >= 0 && wait <= 2 * usecs_per_minute + 2);
    }
    return 0;
}
