// Takes any settings and findings of a visit. Checks that naps, batches and pauses stay within
// their bounds, and that the purge keeps to its rate.
#include "core/pacing.hpp"
#include "input.hpp"

using namespace idem::core;

__extension__ using Wide = __int128;

extern "C" int LLVMFuzzerTestOneInput(const char* data, std::size_t size) {
    Input in({data, size});
    const std::int64_t naptime = in.number_to(usecs_per_day);
    const std::int64_t nap = static_cast<std::int64_t>(in.number());
    const std::int64_t seen = in.number_to(std::int64_t{1} << 40);
    const VisitCounts found{
        .seen = seen, .deleted = in.number_to(seen), .more = in.byte() % 2 == 1};

    require(shortest_nap(naptime) > 0 && shortest_nap(naptime) <= longest_nap(naptime));
    const std::int64_t next = next_nap(nap, naptime, found);
    require(next >= shortest_nap(naptime) && next <= longest_nap(naptime));
    // The more there was to delete, the sooner.
    const VisitCounts nothing{.seen = seen, .deleted = 0, .more = found.more};
    require(next <= next_nap(nap, naptime, nothing));
    const std::int64_t absent = absent_nap(nap, naptime);
    require(absent >= shortest_nap(naptime) && absent <= 6 * longest_nap(naptime));

    const std::int64_t wait = back_off(in.number_to(max_duration));
    require(wait >= usecs_per_second && wait <= usecs_per_minute);

    const auto rate = static_cast<std::int32_t>(in.number(4));
    const std::int32_t batch = batch_records(rate);
    require(batch >= 1 && batch <= max_batch_records);
    const std::int64_t took = in.number_to(usecs_per_day);
    const std::int64_t rest = rest_after(batch, rate, took);
    require(rest >= 0 && (rate > 0 || rest == 0));
    // Batch and pause together take as long as the rate allows, to a microsecond.
    if (rate > 0) require((Wide{took} + rest + 1) * rate >= Wide{batch} * usecs_per_second);

    const Clocks before{in.number_to(INT64_MAX / 2), in.number_to(INT64_MAX / 2)};
    const Clocks now{in.number_to(INT64_MAX / 2), in.number_to(INT64_MAX / 2)};
    require(jump(before, now) == -jump(now, before));
    require(agree(before, now) == agree(now, before));
    const Clocks same{before.wall + 1000, before.steady + 1000};
    require(jump(before, same) == 0 && agree(before, same));
    return 0;
}
