#include "core/weakness.hpp"

#include <algorithm>
#include <array>
#include <cstdint>

namespace idem::core {
namespace {

constexpr bool is_digit(char c) noexcept {
    return c >= '0' && c <= '9';
}

// Every byte outside ASCII counts as a letter.
constexpr bool is_letter(char c) noexcept {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || static_cast<unsigned char>(c) >= 128;
}

bool all_digits(std::string_view text) noexcept {
    return !text.empty() && std::all_of(text.begin(), text.end(), is_digit);
}

// Takes at most 19 digits, which fit into 64 bits.
std::uint64_t value_of(std::string_view digits) noexcept {
    std::uint64_t value = 0;
    for (char c : digits) value = value * 10 + static_cast<std::uint64_t>(c - '0');
    return value;
}

// Reads a text from left to right. Functions that return false consume nothing.
class Scanner {
  public:
    explicit Scanner(std::string_view text) noexcept : rest_(text) {}

    bool at_end() const noexcept { return rest_.empty(); }

    bool skip_one_of(std::string_view characters) noexcept {
        if (rest_.empty() || characters.find(rest_.front()) == std::string_view::npos) return false;
        rest_.remove_prefix(1);
        return true;
    }

    bool number(std::size_t digits, std::uint64_t least, std::uint64_t most) noexcept {
        if (rest_.size() < digits || !all_digits(rest_.substr(0, digits))) return false;
        const std::uint64_t value = value_of(rest_.substr(0, digits));
        if (value < least || value > most) return false;
        rest_.remove_prefix(digits);
        return true;
    }

    bool some_digits() noexcept {
        const auto end = std::find_if_not(rest_.begin(), rest_.end(), is_digit);
        const bool some = end != rest_.begin();
        rest_.remove_prefix(static_cast<std::size_t>(end - rest_.begin()));
        return some;
    }

  private:
    std::string_view rest_;
};

bool scan_date(Scanner& scanner) noexcept {
    if (!scanner.number(4, 1900, 2199)) return false;
    const bool hyphens = scanner.skip_one_of("-");
    if (!scanner.number(2, 1, 12)) return false;
    if (hyphens && !scanner.skip_one_of("-")) return false;
    return scanner.number(2, 1, 31);
}

bool scan_time(Scanner& scanner) noexcept {
    if (!scanner.number(2, 0, 24)) return false;
    (void)scanner.skip_one_of(":");
    if (!scanner.number(2, 0, 59)) return false;
    const bool colon = scanner.skip_one_of(":");
    if (!scanner.number(2, 0, 60)) return !colon;
    return !scanner.skip_one_of(".,") || scanner.some_digits();
}

bool scan_zone(Scanner& scanner) noexcept {
    if (scanner.at_end() || scanner.skip_one_of("Zz")) return true;
    if (!scanner.skip_one_of("+-") || !scanner.number(2, 0, 15)) return false;
    const bool colon = scanner.skip_one_of(":");
    return scanner.number(2, 0, 59) || !colon;
}

// Such as '2026-03-04', '2026-03-04T05:06:07.89Z', '2026-03-04 05:06+01', '20260304050607'.
bool is_iso_time(std::string_view key) noexcept {
    Scanner scanner(key);
    if (!scan_date(scanner)) return false;
    if (scanner.at_end()) return true;
    (void)scanner.skip_one_of("Tt ");
    return scan_time(scanner) && scan_zone(scanner) && scanner.at_end();
}

// A time between 2001, when the seconds since 1970 reached ten digits, and 2100: in seconds, or in
// milli-, micro- or nanoseconds, with or without a fraction.
bool is_epoch_time(std::string_view key) noexcept {
    constexpr std::size_t second_digits = 10;
    const std::size_t point = std::min(key.find('.'), key.size());
    const std::string_view whole = key.substr(0, point);
    if (!all_digits(whole) || whole.size() < second_digits || whole.size() > max_counter_digits)
        return false;
    if ((whole.size() - second_digits) % 3 != 0) return false;
    if (point < key.size() && !all_digits(key.substr(point + 1))) return false;
    const std::uint64_t seconds = value_of(whole.substr(0, second_digits));
    return seconds >= 1'000'000'000 && seconds < 4'102'444'800;
}

bool is_counter(std::string_view key) noexcept {
    if (!all_digits(key)) return false;
    const std::size_t zeros = std::min(key.find_first_not_of('0'), key.size());
    return key.size() - zeros <= max_counter_digits;
}

// Two or more letters, a separator and a number, such as 'order-7'.
bool is_named_number(std::string_view key) noexcept {
    const auto separator = std::find_if_not(key.begin(), key.end(), is_letter);
    const auto at = static_cast<std::size_t>(separator - key.begin());
    constexpr std::string_view separators = "-_:/.#";
    return at >= 2 && at < key.size() && separators.find(key[at]) != std::string_view::npos &&
           all_digits(key.substr(at + 1));
}

bool is_repetitive(std::string_view key) noexcept {
    std::array<bool, 256> seen{};
    std::size_t different = 0;
    for (char c : key) {
        bool& known = seen[static_cast<unsigned char>(c)];
        different += known ? 0 : 1;
        known = true;
    }
    return different <= 2 || different * 8 < key.size();
}

}  // namespace

Weakness weakness(std::string_view key) noexcept {
    if (is_epoch_time(key) || is_iso_time(key)) return Weakness::timestamp;
    if (is_counter(key)) return Weakness::number;
    if (key.size() < min_strong_bytes)
        return is_named_number(key) ? Weakness::none : Weakness::too_short;
    return is_repetitive(key) ? Weakness::repetitive : Weakness::none;
}

std::string_view weakness_name(Weakness weakness) noexcept {
    switch (weakness) {
        case Weakness::timestamp:
            return "timestamp";
        case Weakness::number:
            return "number";
        case Weakness::too_short:
            return "short";
        case Weakness::repetitive:
            return "repetitive";
        case Weakness::none:
            break;
    }
    return {};
}

}  // namespace idem::core
