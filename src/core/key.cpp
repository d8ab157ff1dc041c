#include "core/key.hpp"

#include <algorithm>

namespace idem::core {
namespace {

constexpr std::size_t uuid_length = UuidText{}.size();
constexpr std::size_t ulid_length = 26;
constexpr std::size_t ulid_time_length = 10;

constexpr DigitValues lower_hex = digit_values({"0123456789abcdef"});
constexpr DigitValues any_hex = digit_values({"0123456789abcdef", "0123456789ABCDEF"});
// Crockford's base 32 has no I, L, O or U.
constexpr DigitValues crockford =
    digit_values({"0123456789abcdefghjkmnpqrstvwxyz", "0123456789ABCDEFGHJKMNPQRSTVWXYZ"});

// By the bytes of the UUID: the first group has four, the next three have two each.
constexpr bool hyphen_precedes(std::size_t byte) noexcept {
    return byte == 4 || byte == 6 || byte == 8 || byte == 10;
}

// The UUID that is written with these digits. Looks at all characters, whichever does not fit: that
// costs less than to stop at the first.
std::optional<Uuid> parsed_uuid(std::string_view key, const DigitValues& digits) noexcept {
    if (key.size() != uuid_length) return std::nullopt;
    Uuid uuid;
    bool fits = true;
    auto at = key.begin();
    for (std::size_t i = 0; i < uuid.size(); ++i) {
        if (hyphen_precedes(i)) fits &= *at++ == '-';
        const int high = digit_value(digits, *at++);
        const int low = digit_value(digits, *at++);
        fits &= (high | low) >= 0;
        uuid[i] = static_cast<std::byte>(high << 4 | low);
    }
    return fits ? std::optional(uuid) : std::nullopt;
}

// Looks at the version first, because most other keys of this length are UUIDs, too.
std::optional<std::uint64_t> uuid_v7_time(std::string_view key) noexcept {
    if (key.size() != uuid_length || key[14] != '7') return std::nullopt;
    const auto uuid = parsed_uuid(key, any_hex);
    const bool is_v7 = uuid && ((*uuid)[8] & std::byte{0xc0}) == std::byte{0x80};  // RFC 9562
    return is_v7 ? std::optional(from_big_endian(Bytes(*uuid).first(6))) : std::nullopt;
}

}  // namespace

std::optional<Uuid> canonical_uuid(std::string_view key) noexcept {
    return parsed_uuid(key, lower_hex);
}

UuidText uuid_text(const Uuid& uuid) noexcept {
    UuidText text;
    auto at = text.begin();
    for (std::size_t i = 0; i < uuid.size(); ++i) {
        if (hyphen_precedes(i)) *at++ = '-';
        at = put_hex(Bytes(uuid).subspan(i, 1), at);
    }
    return text;
}

std::optional<std::uint64_t> embedded_time(std::string_view key) noexcept {
    if (key.size() != ulid_length) return uuid_v7_time(key);
    std::uint64_t time = 0;
    for (std::size_t i = 0; i < ulid_length; ++i) {
        const int value = digit_value(crockford, key[i]);
        if (value < 0) return std::nullopt;
        if (i < ulid_time_length) time = time << 5 | static_cast<std::uint64_t>(value);
    }
    const bool fits = time >> 48 == 0;  // 26 digits hold 130 bits, a ULID has 128
    return fits ? std::optional(time) : std::nullopt;
}

bool is_stale(std::string_view key, std::int64_t now, std::int64_t ttl) noexcept {
    const auto milliseconds = embedded_time(key);
    if (!milliseconds) return false;
    const std::int64_t made = static_cast<std::int64_t>(*milliseconds) * 1000;  // below 2^58
    return made < now - ttl || made > now + future_tolerance;
}

UuidText uuid_v7(std::uint64_t tick, std::uint64_t random) noexcept {
    constexpr std::uint64_t version = 7;
    constexpr std::uint64_t variant = 0b10;
    const auto front = big_endian<8>((tick >> 12) << 16 | version << 12 | (tick & 0xfff));
    const auto back = big_endian<8>(variant << 62 | (random & ~std::uint64_t{0} >> 2));

    Uuid uuid;
    std::copy(back.begin(), back.end(), std::copy(front.begin(), front.end(), uuid.begin()));
    return uuid_text(uuid);
}

}  // namespace idem::core
