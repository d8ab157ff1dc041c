// Which keys are likely to be used twice for different operations.
//
// A good key is unique by chance (a UUID, a ULID, any long random string) or by nature, because it
// names one operation: 'order-4711'. A bare number, a bare time, a few characters or the same one
// over and over is neither: another client, or the same one after a restart, will send it again.
// Only the form can be judged, so what is not weak need not be good. Bytes, not characters, are
// counted. Pure; allocates and throws nothing.
#pragma once

#include <cstddef>
#include <string_view>

namespace idem::core {

enum class Weakness {
    none,
    timestamp,   // seconds, or finer, since 1970; or an ISO 8601 date, with or without a time
    number,      // a decimal number that a 64-bit counter could come to, leading zeros or not
    too_short,   // fewer than 8 bytes, unless it is a name and a number, such as 'order-7'
    repetitive,  // at most two different bytes, or fewer than one in eight
};

inline constexpr std::size_t min_strong_bytes = 8;
inline constexpr std::size_t max_counter_digits = 19;

Weakness weakness(std::string_view key) noexcept;

// 'timestamp', 'number', 'short', 'repetitive'; empty for none.
std::string_view weakness_name(Weakness weakness) noexcept;

}  // namespace idem::core
