// Takes any rates, durations and numbers. Checks the results against long doubles and 128-bit
// numbers.
#include <bit>
#include <cmath>

#include "core/capacity.hpp"
#include "core/duration.hpp"
#include "input.hpp"

using namespace idem::core;

namespace {

__extension__ using Wide = __int128;

// Finite and not negative, as the functions ask; and not so small that products lose digits.
double real(Input& in) {
    const double value = std::abs(std::bit_cast<double>(in.number()));
    return std::isfinite(value) && (value > 1e-150 || value == 0) ? value : 1;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const char* data, std::size_t size) {
    Input in({data, size});
    const std::int64_t part[] = {in.number_to(max_duration), in.number_to(max_duration),
                                 in.number_to(max_duration), in.number_to(max_duration)};
    require(retention_window(part[0], part[1], part[2], part[3]) ==
            Wide{part[0]} + part[1] + part[2] + part[3]);

    constexpr long double error = 1e-14L;
    const double rate = real(in);
    const double margin = real(in);
    const long double product =
        static_cast<long double>(rate) * part[0] / usecs_per_second * (1 + margin);
    if (const auto records = records_needed(rate, part[0], margin)) {
        require(static_cast<long double>(*records) >= product * (1 - error));
        require(static_cast<long double>(*records) <= product * (1 + error) + 1);
    } else {
        // A double may be infinite where the long double is not.
        require(product >= 0x1p63L * (1 - error) || std::isinf(rate * (1 + margin)) ||
                std::isinf(static_cast<double>(product)) ||
                std::isinf(rate * static_cast<double>(part[0]) / 1e6));
    }

    const std::int64_t records = in.number_to(INT64_MAX);
    const auto bits = static_cast<std::int32_t>(in.number_to(2000));
    const double probability = collision_probability(records, bits);
    const long double pairs =
        records < 2 ? 0 : static_cast<long double>(records) * (records - 1) / 2;
    const long double exact = std::fmin(1.0L, std::ldexp(pairs, -bits));
    require(probability >= 0 && probability <= 1);
    // Below 1e-300, a double has fewer digits.
    if (exact > 1e-300L) require(std::abs(probability - exact) <= exact * error);
    require(collision_probability(records, bits + 1) <= probability);
    return 0;
}
