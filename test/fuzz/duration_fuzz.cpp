// Takes any interval, as PostgreSQL stores one. Checks the sum against 128-bit numbers, and that
// the advice when to retry stays within its bounds.
#include "core/duration.hpp"
#include "input.hpp"

using namespace idem::core;

namespace {

__extension__ using Wide = __int128;

bool within(Wide value, Wide most) {
    return value >= -most && value <= most;
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
    return 0;
}
