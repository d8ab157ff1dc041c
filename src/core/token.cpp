#include "core/token.hpp"

#include <algorithm>

namespace idem::core {
namespace {

// The layouts as the first byte tells them. A leased token whose record is elsewhere has its table
// at the end.
enum Layout : std::uint8_t { atomic = 1, leased = 2, leased_elsewhere = 3 };

constexpr std::size_t plain_bytes = 1 + 16 + 4 + 8;
constexpr std::size_t elsewhere_bytes = plain_bytes + 4;
static_assert(token_length == (plain_bytes * 4 + 2) / 3);
static_assert(max_token_length == (elsewhere_bytes * 4 + 2) / 3);

// Three bytes become four digits. A plain token has a zero byte behind it, whose digit is not
// written.
using Raw = std::array<std::byte, elsewhere_bytes>;
static_assert(elsewhere_bytes % 3 == 0 && plain_bytes % 3 == 2);
constexpr std::size_t raw_bytes(std::size_t digits) {
    return (digits + 3) / 4 * 3;
}

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

Layout layout_of(const Token& token) noexcept {
    if (token.kind == TokenKind::atomic) return atomic;
    return token.table == 0 ? leased : leased_elsewhere;
}

Raw pack(const Token& token) noexcept {
    Raw out{};
    auto at = out.begin();
    const auto put = [&at](const auto& piece) { at = std::copy(piece.begin(), piece.end(), at); };
    put(big_endian<1>(static_cast<std::uint64_t>(layout_of(token))));
    put(token.digest);
    put(big_endian<4>(token.attempt));
    put(big_endian<8>(token.random));
    if (layout_of(token) == leased_elsewhere) put(big_endian<4>(token.table));
    return out;
}

// False unless the layout is known, has this length, and is the one that encode() would choose.
bool unpack(const Raw& raw, std::size_t length, Token& out) noexcept {
    const Bytes parts(raw);
    const auto layout = std::to_integer<std::uint8_t>(raw[0]);
    const bool elsewhere = layout == leased_elsewhere;
    if (layout != atomic && layout != leased && !elsewhere) return false;
    if (length != (elsewhere ? max_token_length : token_length)) return false;
    out.kind = layout == atomic ? TokenKind::atomic : TokenKind::leased;
    std::copy_n(parts.begin() + 1, out.digest.size(), out.digest.begin());
    out.attempt = static_cast<std::uint32_t>(from_big_endian(parts.subspan(17, 4)));
    out.random = from_big_endian(parts.subspan(21, 8));
    // Of a plain token, these bytes are zeros: one was decoded from a digit that is not written.
    out.table = static_cast<std::uint32_t>(from_big_endian(parts.subspan(plain_bytes, 4)));
    return elsewhere == (out.table != 0);
}

}  // namespace

TokenText encode(const Token& token) noexcept {
    TokenText text{};
    text.size = layout_of(token) == leased_elsewhere ? max_token_length : token_length;
    const Raw raw = pack(token);
    const auto byte = [&raw](std::size_t i) { return std::to_integer<std::uint32_t>(raw[i]); };
    for (std::size_t i = 0, at = 0; i < raw_bytes(text.size); i += 3, at += 4) {
        const std::uint32_t bits = byte(i) << 16 | byte(i + 1) << 8 | byte(i + 2);
        text.digits[at] = alphabet[bits >> 18];
        text.digits[at + 1] = alphabet[bits >> 12 & 0x3f];
        text.digits[at + 2] = alphabet[bits >> 6 & 0x3f];
        text.digits[at + 3] = alphabet[bits & 0x3f];
    }
    return text;
}

bool decode(std::string_view text, Token& out) noexcept {
    if (text.size() != token_length && text.size() != max_token_length) return false;
    std::array<char, max_token_length> digits;
    digits.fill(alphabet[0]);
    std::copy(text.begin(), text.end(), digits.begin());
    std::uint32_t seen = 0;
    const auto value = [&](std::size_t i) {
        const std::uint32_t digit = digit_of[static_cast<unsigned char>(digits[i])];
        seen |= digit;
        return digit;
    };
    Raw raw{};
    for (std::size_t i = 0, at = 0; i < raw_bytes(text.size()); i += 3, at += 4) {
        const std::uint32_t bits =
            value(at) << 18 | value(at + 1) << 12 | value(at + 2) << 6 | value(at + 3);
        raw[i] = static_cast<std::byte>(bits >> 16 & 0xff);
        raw[i + 1] = static_cast<std::byte>(bits >> 8 & 0xff);
        raw[i + 2] = static_cast<std::byte>(bits & 0xff);
    }
    return seen <= 0x3f && unpack(raw, text.size(), out);
}

}  // namespace idem::core
