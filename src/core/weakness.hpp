// Weak keys: those that are likely to be used again for a different operation.
//
// A good key is either random and long (a UUID, a ULID) or names one operation ('order-4711'). A
// key that is only a number, only a time, very short or repetitive is neither: another client, or
// the same client after a restart, is likely to send it again. A generic key is what a faulty
// client sends for every operation: a constant, or what its language prints for a missing value.
// Only the form of a key can be checked, so a key that is not weak is not necessarily good. Lengths
// are in bytes, not characters.
//
// Pure functions; no allocation, no exceptions.
#pragma once

#include <cstddef>
#include <string_view>

namespace idem::core {

// Empty if the key is not weak, or else:
// 'generic': a missing value, a general word, an unfilled placeholder, the nil or max UUID
// 'timestamp': the time since 1970 in seconds or smaller units, or an ISO 8601 date or time
// 'number': decimal digits that a 64-bit counter could reach, leading zeros aside
// 'short': fewer than 8 bytes, unless it is letters and a number, such as 'o-7'
// 'repetitive': at most two different bytes, or fewer than one different byte in eight
std::string_view weakness(std::string_view key) noexcept;

}  // namespace idem::core
