#include "core/token.hpp"

#include <algorithm>

namespace idem::core {
namespace {

// Three bytes become four digits, so that each text of this length is of one token at most.
using Raw = std::array<std::byte, 1 + 16 + 4 + 8 + 4>;
static_assert(Raw{}.size() % 3 == 0 && Raw{}.size() / 3 * 4 == sizeof(TokenText::digits));

constexpr std::string_view alphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

constexpr DigitValues values = digit_values({alphabet});

}  // namespace

TokenText encode(const Token& token) noexcept {
    Raw raw;
    auto to = raw.begin();
    const auto put = [&to](const auto& piece) { to = std::copy(piece.begin(), piece.end(), to); };
    put(big_endian<1>(static_cast<std::uint64_t>(token.kind)));
    put(token.digest);
    put(big_endian<4>(token.attempt));
    put(big_endian<8>(token.random));
    put(big_endian<4>(token.table));
    TokenText text;
    const auto byte = [&raw](std::size_t i) { return std::to_integer<std::uint32_t>(raw[i]); };
    for (std::size_t i = 0, at = 0; i < raw.size(); i += 3, at += 4) {
        const std::uint32_t bits = byte(i) << 16 | byte(i + 1) << 8 | byte(i + 2);
        text.digits[at] = alphabet[bits >> 18];
        text.digits[at + 1] = alphabet[bits >> 12 & 0x3f];
        text.digits[at + 2] = alphabet[bits >> 6 & 0x3f];
        text.digits[at + 3] = alphabet[bits & 0x3f];
    }
    return text;
}

bool decode(std::string_view text, Token& out) noexcept {
    if (text.size() != sizeof(TokenText::digits)) return false;
    int seen = 0;
    const auto value = [&](std::size_t i) {
        const int digit = digit_value(values, text[i]);
        seen |= digit;
        return static_cast<std::uint32_t>(digit);
    };
    Raw raw;
    for (std::size_t i = 0, at = 0; i < raw.size(); i += 3, at += 4) {
        const std::uint32_t bits =
            value(at) << 18 | value(at + 1) << 12 | value(at + 2) << 6 | value(at + 3);
        raw[i] = static_cast<std::byte>(bits >> 16 & 0xff);
        raw[i + 1] = static_cast<std::byte>(bits >> 8 & 0xff);
        raw[i + 2] = static_cast<std::byte>(bits & 0xff);
    }
    const Bytes parts(raw);
    out.kind = static_cast<TokenKind>(raw[0]);
    std::copy_n(parts.begin() + 1, out.digest.size(), out.digest.begin());
    out.attempt = static_cast<std::uint32_t>(from_big_endian(parts.subspan(17, 4)));
    out.random = from_big_endian(parts.subspan(21, 8));
    out.table = static_cast<std::uint32_t>(from_big_endian(parts.subspan(29, 4)));
    return seen >= 0 && (out.kind == TokenKind::atomic || out.kind == TokenKind::leased);
}

}  // namespace idem::core
