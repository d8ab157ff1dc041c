#include "core/token.hpp"

#include <algorithm>

namespace idem::core {
namespace {

using Raw = std::array<std::byte, token_bytes>;

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
    TokenText out{};
    auto at = out.begin();
    std::uint32_t bits = 0;
    int held = 0;
    for (std::byte b : pack(token)) {
        bits = bits << 8 | std::to_integer<std::uint32_t>(b);
        for (held += 8; held >= 6; held -= 6) *at++ = alphabet[bits >> (held - 6) & 0x3f];
    }
    *at = alphabet[bits << (6 - held) & 0x3f];  // four bits remain of 29 bytes
    return out;
}

bool decode(std::string_view text, Token& out) noexcept {
    if (text.size() != token_length) return false;
    Raw raw{};
    auto at = raw.begin();
    std::uint32_t bits = 0;
    int held = 0;
    for (char c : text) {
        const std::uint8_t digit = digit_of[static_cast<unsigned char>(c)];
        if (digit == no_digit) return false;
        bits = bits << 6 | digit;
        held += 6;
        if (held < 8) continue;
        held -= 8;
        *at++ = static_cast<std::byte>(bits >> held & 0xff);
    }
    if ((bits & ((1U << held) - 1)) != 0) return false;  // the last character has two unused bits

    const Bytes parts(raw);
    out.kind = static_cast<TokenKind>(parts[0]);
    if (out.kind != TokenKind::atomic && out.kind != TokenKind::leased) return false;
    std::copy_n(parts.begin() + 1, out.digest.size(), out.digest.begin());
    out.attempt = static_cast<std::uint32_t>(from_big_endian(parts.subspan(17, 4)));
    out.random = from_big_endian(parts.subspan(21, 8));
    return true;
}

}  // namespace idem::core
