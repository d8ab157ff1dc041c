// Takes any interval, as PostgreSQL stores one. Checks the sum against 128-bit numbers, and that
// the advice when to retry, and the pause between attempts, stay within their bounds.
#include "core/duration.hpp"
#include "input.hpp"

using namespace idem::core;

namespace {

__extension__ using Wide = __int128;

bool within(Wide value, Wide most) {
    return value >= -most && value <= most;
}

// Twice as long for each attempt, at most cap; shift is what a 128-bit number can bear.
Wide whole_pause(std::int32_t attempt, std::int64_t base, std::int64_t cap) {
    const Wide whole = Wide{base} << (attempt < 62 ? attempt - 1 : 61);
    return whole < cap ? whole : cap;
}

void check_backoff(Input& in) {
    const auto attempt = static_cast<std::int32_t>(1 + in.number_to(INT32_MAX - 1));
    const std::int64_t base = 1 + in.number_to(max_duration - 1);
    const std::int64_t cap = 1 + in.number_to(max_duration - 1);
    const Wide whole = whole_pause(attempt, base, cap);
    // As the server makes a random number: 52 bits.
    constexpr double parts = 4503599627370496.0;
    const double random = static_cast<double>(in.number() >> 12) / parts;
    const std::int64_t pause = backoff(attempt, base, cap, random);
    require(pause >= whole / 2 && pause <= whole);
    require(backoff(attempt, base, cap, 0) == whole / 2);
    require(pause <= backoff(attempt, base, cap, (parts - 1) / parts));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const char* data, std::size_t size) {
    Input in({data, size});
    const auto months = static_cast<std::int32_t>(in.number(4));
    const auto days = static_cast<std::int32_t>(in.number(4));
    const auto usecs = static_cast<std::int64_t>(in.number());

    const Wide whole_days = (Wide{months} * 30 + days) * usecs_per_day;
    const Wide sum = whole_days + usecs;
    const auto fixed = fixed_duration(months, days, usecs);
    if (fixed) require(*fixed == sum && within(sum, max_duration));
    // It may also refuse parts that cancel each other, but only if they are very long.
    if (!fixed)
        require(!within(sum, max_duration) || !within(whole_days, 2 * Wide{max_duration}) ||
                !within(usecs, 2 * Wide{max_duration}));

    const auto age = static_cast<std::int64_t>(in.number());
    const auto left = static_cast<std::int64_t>(in.number());
    const std::int64_t atomic = retry_after(age);
    require(atomic >= usecs_per_second / 10 && atomic <= 10 * usecs_per_second);
    require(age == atomic || (age < atomic) == (atomic == usecs_per_second / 10));
    const std::int64_t leased = retry_after(age, left);
    require(leased >= 0 && leased <= atomic);
    require(left < 0 ? leased == 0 : leased == (left < atomic ? left : atomic));
    check_backoff(in);
    return 0;
}
