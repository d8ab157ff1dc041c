#include "core/key.hpp"

#include <array>

namespace idem::core {
namespace {

constexpr std::size_t uuid_length = 36;
constexpr std::size_t ulid_length = 26;
constexpr std::size_t ulid_time_length = 10;

constexpr auto hex_values = [] {
    std::array<std::int8_t, 256> table{};
    table.fill(-1);
    for (int i = 0; i < 16; ++i) {
        table[static_cast<unsigned char>("0123456789abcdef"[i])] = static_cast<std::int8_t>(i);
        table[static_cast<unsigned char>("0123456789ABCDEF"[i])] = static_cast<std::int8_t>(i);
    }
    return table;
}();

// Negative for a character that is not a hexadecimal digit.
constexpr int hex_value(char c) noexcept {
    return hex_values[static_cast<unsigned char>(c)];
}

// Crockford's base 32 has no I, L, O or U.
constexpr int crockford_value(char c) noexcept {
    constexpr std::string_view alphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    const char upper = (c >= 'a' && c <= 'z') ? static_cast<char>(c - 'a' + 'A') : c;
    const auto at = alphabet.find(upper);
    return at == std::string_view::npos ? -1 : static_cast<int>(at);
}

constexpr bool hyphen_belongs_at(std::size_t i) noexcept {
    return i == 8 || i == 13 || i == 18 || i == 23;
}

// Looks at the version first, because most other keys of this length are UUIDs, too.
bool is_uuid_v7(std::string_view key) noexcept {
    if (key.size() != uuid_length || key[14] != '7') return false;
    for (std::size_t i = 0; i < key.size(); ++i) {
        const bool fits = hyphen_belongs_at(i) ? key[i] == '-' : hex_value(key[i]) >= 0;
        if (!fits) return false;
    }
    return (hex_value(key[19]) & 0xc) == 0x8;  // the variant of RFC 9562
}

bool is_ulid(std::string_view key) noexcept {
    if (key.size() != ulid_length) return false;
    for (char c : key)
        if (crockford_value(c) < 0) return false;
    return crockford_value(key[0]) <= 7;  // 26 digits hold 130 bits, a ULID has 128
}

std::uint64_t uuid_time(std::string_view key) noexcept {
    std::uint64_t time = 0;
    for (std::size_t i = 0; i < 13; ++i)
        if (key[i] != '-') time = time << 4 | static_cast<std::uint64_t>(hex_value(key[i]));
    return time;
}

std::uint64_t ulid_time(std::string_view key) noexcept {
    std::uint64_t time = 0;
    for (char c : key.substr(0, ulid_time_length))
        time = time << 5 | static_cast<std::uint64_t>(crockford_value(c));
    return time;
}

}  // namespace

std::optional<std::uint64_t> embedded_time(std::string_view key) noexcept {
    if (is_uuid_v7(key)) return uuid_time(key);
    if (is_ulid(key)) return ulid_time(key);
    return std::nullopt;
}

KeyAge key_age(std::string_view key, std::int64_t now, std::int64_t ttl) noexcept {
    const auto milliseconds = embedded_time(key);
    if (!milliseconds) return KeyAge::unknown;
    const std::int64_t made = static_cast<std::int64_t>(*milliseconds) * 1000;  // below 2^58
    if (made < now - ttl) return KeyAge::stale;
    return made > now + future_tolerance ? KeyAge::from_future : KeyAge::current;
}

}  // namespace idem::core
