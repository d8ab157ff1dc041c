// Takes any settings and findings of a run. Checks that delays, batches and pauses stay within
// their bounds, and that the purge keeps to its rate.
#include "core/pacing.hpp"
#include "input.hpp"

using namespace idem::core;

__extension__ using Wide = __int128;

extern "C" int LLVMFuzzerTestOneInput(const char* data, std::size_t size) {
    Input in({data, size});
    const std::int64_t naptime = in.number_to(usecs_per_day);
    const std::int64_t delay = static_cast<std::int64_t>(in.number());
    const std::int64_t seen = in.number_to(std::int64_t{1} << 40);
    const PurgeCounts found{
        .seen = seen, .deleted = in.number_to(seen), .more = in.byte() % 2 == 1};

    require(shortest_delay(naptime) > 0 && shortest_delay(naptime) <= longest_delay(naptime));
    const std::int64_t next = next_delay(delay, naptime, found);
    require(next >= shortest_delay(naptime) && next <= longest_delay(naptime));
    // The more there was to delete, the sooner.
    const PurgeCounts nothing{.seen = seen, .deleted = 0, .more = found.more};
    require(next <= next_delay(delay, naptime, nothing));
    const std::int64_t absent = absent_delay(delay, naptime);
    require(absent >= shortest_delay(naptime) && absent <= 6 * longest_delay(naptime));

    const std::int64_t wait = back_off(in.number_to(max_duration));
    require(wait >= usecs_per_second && wait <= usecs_per_minute);

    const auto rate = static_cast<std::int32_t>(in.number(4));
    const std::int32_t batch = batch_records(rate);
    require(batch >= 1 && batch <= max_batch_records);
    const std::int64_t took = in.number_to(usecs_per_day);
    const std::int64_t pause = batch_delay(batch, rate, took);
    require(pause >= 0 && (rate > 0 || pause == 0));
    // Batch and pause together take as long as the rate allows, to a microsecond.
    if (rate > 0) require((Wide{took} + pause + 1) * rate >= Wide{batch} * usecs_per_second);

    const Clocks before{in.number_to(INT64_MAX / 2), in.number_to(INT64_MAX / 2)};
    const Clocks now{in.number_to(INT64_MAX / 2), in.number_to(INT64_MAX / 2)};
    require(jump(before, now) == -jump(now, before));
    require(agree(before, now) == agree(now, before));
    const Clocks same{before.wall + 1000, before.steady + 1000};
    require(jump(before, same) == 0 && agree(before, same));
    return 0;
}
