#include "core/token.hpp"

#include <algorithm>

namespace idem::core {
namespace {

// With zeros up to a multiple of three bytes: three bytes become four digits. The digits of the
// zeros are not written.
constexpr std::size_t raw_bytes = (token_bytes + 2) / 3 * 3;
constexpr std::size_t raw_digits = raw_bytes / 3 * 4;
using Raw = std::array<std::byte, raw_bytes>;

constexpr std::string_view alphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

constexpr std::uint8_t no_digit = 0xff;
constexpr auto digit_of = [] {
    std::array<std::uint8_t, 256> table{};
    table.fill(no_digit);
    for (std::size_t i = 0; i < alphabet.size(); ++i)
        table[static_cast<unsigned char>(alphabet[i])] = static_cast<std::uint8_t>(i);
    return table;
}();

Raw pack(const Token& token) noexcept {
    Raw out{};
    auto at = out.begin();
    const auto put = [&at](const auto& piece) { at = std::copy(piece.begin(), piece.end(), at); };
    put(big_endian<1>(static_cast<std::uint64_t>(token.kind)));
    put(token.digest);
    put(big_endian<4>(token.attempt));
    put(big_endian<8>(token.random));
    return out;
}

}  // namespace

TokenText encode(const Token& token) noexcept {
    std::array<char, raw_digits> digits{};
    const Raw raw = pack(token);
    const auto byte = [&raw](std::size_t i) { return std::to_integer<std::uint32_t>(raw[i]); };
    for (std::size_t i = 0, at = 0; i < raw.size(); i += 3, at += 4) {
        const std::uint32_t bits = byte(i) << 16 | byte(i + 1) << 8 | byte(i + 2);
        digits[at] = alphabet[bits >> 18];
        digits[at + 1] = alphabet[bits >> 12 & 0x3f];
        digits[at + 2] = alphabet[bits >> 6 & 0x3f];
        digits[at + 3] = alphabet[bits & 0x3f];
    }
    TokenText out;
    std::copy_n(digits.begin(), out.size(), out.begin());
    return out;
}

bool decode(std::string_view text, Token& out) noexcept {
    if (text.size() != token_length) return false;
    std::array<char, raw_digits> digits;
    digits.fill(alphabet[0]);
    std::copy(text.begin(), text.end(), digits.begin());
    std::uint32_t seen = 0;
    const auto value = [&](std::size_t i) {
        const std::uint32_t digit = digit_of[static_cast<unsigned char>(digits[i])];
        seen |= digit;
        return digit;
    };
    Raw raw;
    for (std::size_t i = 0, at = 0; i < raw.size(); i += 3, at += 4) {
        const std::uint32_t bits =
            value(at) << 18 | value(at + 1) << 12 | value(at + 2) << 6 | value(at + 3);
        raw[i] = static_cast<std::byte>(bits >> 16 & 0xff);
        raw[i + 1] = static_cast<std::byte>(bits >> 8 & 0xff);
        raw[i + 2] = static_cast<std::byte>(bits & 0xff);
    }
    static_assert(raw_bytes == token_bytes + 1);
    if (seen > 0x3f || raw.back() != std::byte{0}) return false;

    const Bytes parts(raw);
    out.kind = static_cast<TokenKind>(parts[0]);
    if (out.kind != TokenKind::atomic && out.kind != TokenKind::leased) return false;
    std::copy_n(parts.begin() + 1, out.digest.size(), out.digest.begin());
    out.attempt = static_cast<std::uint32_t>(from_big_endian(parts.subspan(17, 4)));
    out.random = from_big_endian(parts.subspan(21, 8));
    return true;
}

}  // namespace idem::core
