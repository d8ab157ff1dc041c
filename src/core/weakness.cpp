#include "core/key.hpp"

#include <algorithm>
#include <bitset>

namespace idem::core {
namespace {

constexpr std::size_t min_strong_bytes = 8;
constexpr std::size_t max_counter_digits = 19;

constexpr bool is_digit(char c) noexcept {
    return c >= '0' && c <= '9';
}

// Every byte outside ASCII counts as a letter.
constexpr bool is_letter(char c) noexcept {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || static_cast<unsigned char>(c) >= 128;
}

constexpr bool is_separator(char c) noexcept {
    return std::string_view("-_:/.#").find(c) != std::string_view::npos;
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

// Letters and a number, with or without a separator between them, such as 'o-7' and 'ab1'.
bool is_named_number(std::string_view key) noexcept {
    const auto name = std::find_if_not(key.begin(), key.end(), is_letter);
    if (name == key.begin()) return false;
    std::string_view number = key.substr(static_cast<std::size_t>(name - key.begin()));
    if (!number.empty() && is_separator(number.front())) number.remove_prefix(1);
    return all_digits(number);
}

bool is_repetitive(std::string_view key) noexcept {
    std::bitset<256> seen;
    for (char c : key) seen[static_cast<unsigned char>(c)] = true;
    return seen.count() <= 2 || seen.count() * 8 < key.size();
}

// The letters and digits of a key, in lower case: '[object Object]' and 'object_object' have the
// same. Empty where a byte is not ASCII, or if there are more than the 32 that a UUID has.
std::string_view essence_of(std::string_view key, std::array<char, 32>& room) noexcept {
    std::size_t size = 0;
    for (char c : key) {
        if (!is_letter(c) && !is_digit(c)) continue;
        if (static_cast<unsigned char>(c) >= 128 || size == room.size()) return {};
        const bool upper = c >= 'A' && c <= 'Z';
        room[size++] = upper ? static_cast<char>(c - 'A' + 'a') : c;
    }
    return {room.data(), size};
}

// What languages print for a missing value, what the header and its parameter are called, and words
// that name a kind of operation but none of them. Sorted.
// clang-format off
constexpr std::array<std::string_view, 64> generic_words{
    "cart", "changeme", "charge", "checkout", "claim", "confirm", "create", "createorder",
    "createpayment", "default", "delete", "deposit", "dummy", "empty", "event", "example",
    "false", "guid", "id", "idempotency", "idempotencykey", "idempotent", "idempotentkey",
    "infinity", "insert", "invoice", "key", "message", "mykey", "nan", "nil", "none", "null",
    "objectobject", "order", "orders", "password", "pay", "payment", "payments", "payout",
    "placeholder", "purchase", "random", "refund", "request", "requestid", "reservation",
    "reserve", "retry", "secret", "string", "submit", "subscription", "test", "testkey", "token",
    "transaction", "transfer", "true", "undefined", "update", "uuid", "xidempotencykey",
};
// clang-format on
static_assert(std::is_sorted(generic_words.begin(), generic_words.end()));

// One step of a composed key for which the client had no value, spelled as its language prints it:
// 'order-undefined', 'null:7'. Shorter words would be met in random keys.
bool has_missing_step(std::string_view key) noexcept {
    constexpr std::array<std::string_view, 3> missing{"undefined", "null", "None"};
    while (!key.empty()) {
        const auto end = std::find_if(key.begin(), key.end(), is_separator);
        const std::string_view step = key.substr(0, static_cast<std::size_t>(end - key.begin()));
        if (std::find(missing.begin(), missing.end(), step) != missing.end()) return true;
        key.remove_prefix(std::min(step.size() + 1, key.size()));
    }
    return false;
}

// A template's parameter that was not filled in: '{{order_id}}', '${orderId}', '<order id>'.
bool is_placeholder(std::string_view key) noexcept {
    const auto encloses = [key](std::string_view begin, std::string_view end) {
        return key.starts_with(begin) && key.ends_with(end);
    };
    return encloses("{{", "}}") || encloses("${", "}") || encloses("<", ">");
}

bool is_generic(std::string_view key) noexcept {
    constexpr std::string_view nil_uuid = "00000000000000000000000000000000";
    constexpr std::string_view max_uuid = "ffffffffffffffffffffffffffffffff";
    std::array<char, 32> room{};
    const std::string_view word = essence_of(key, room);
    return std::binary_search(generic_words.begin(), generic_words.end(), word) ||
           word == nil_uuid || word == max_uuid || is_placeholder(key) || has_missing_step(key);
}

}  // namespace

std::string_view weakness(std::string_view key) noexcept {
    if (is_generic(key)) return "generic";
    if (is_epoch_time(key) || is_iso_time(key)) return "timestamp";
    if (is_counter(key)) return "number";
    if (key.size() < min_strong_bytes) return is_named_number(key) ? "" : "short";
    return is_repetitive(key) ? "repetitive" : "";
}

}  // namespace idem::core
