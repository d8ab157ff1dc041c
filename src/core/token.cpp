#include "core/token.hpp"

#include <openssl/evp.h>

#include <algorithm>

namespace idem::core {
namespace {

using Raw = std::array<std::byte, token_bytes>;
using Padded = std::array<unsigned char, token_length + 1>;  // base64 proper ends in one '='
static_assert(Padded{}.size() % 4 == 0);

Raw pack(const Token& token) noexcept {
    Raw out{};
    auto at = out.begin();
    const auto put = [&at](const auto& piece) { at = std::copy(piece.begin(), piece.end(), at); };
    put(big_endian<1>(token_version));
    put(token.digest);
    put(big_endian<4>(token.attempt));
    put(big_endian<8>(token.random));
    return out;
}

bool is_alphabet(unsigned char c) noexcept {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

}  // namespace

TokenText encode(const Token& token) noexcept {
    const Raw raw = pack(token);
    std::array<unsigned char, Padded{}.size() + 1> base64{};  // EVP_EncodeBlock ends with a NUL
    EVP_EncodeBlock(base64.data(), reinterpret_cast<const unsigned char*>(raw.data()),
                    static_cast<int>(raw.size()));
    TokenText out{};
    std::transform(base64.begin(), base64.begin() + out.size(), out.begin(), [](unsigned char c) {
        return c == '+' ? '-' : c == '/' ? '_' : static_cast<char>(c);
    });
    return out;
}

bool decode(std::string_view text, Token& out) noexcept {
    if (text.size() != token_length || !std::all_of(text.begin(), text.end(), is_alphabet))
        return false;
    Padded base64{};
    std::transform(text.begin(), text.end(), base64.begin(), [](char c) {
        return static_cast<unsigned char>(c == '-' ? '+' : c == '_' ? '/' : c);
    });
    base64.back() = '=';

    std::array<unsigned char, Padded{}.size() / 4 * 3> decoded{};
    if (EVP_DecodeBlock(decoded.data(), base64.data(), static_cast<int>(base64.size())) < 0)
        return false;
    if (decoded.back() != 0) return false;  // the last character has two bits to spare
    const Bytes raw = std::as_bytes(std::span(decoded)).first(token_bytes);
    if (std::to_integer<std::uint8_t>(raw[0]) != token_version) return false;
    std::copy_n(raw.begin() + 1, out.digest.size(), out.digest.begin());
    out.attempt = static_cast<std::uint32_t>(from_big_endian(raw.subspan(17, 4)));
    out.random = from_big_endian(raw.subspan(21, 8));
    return true;
}

}  // namespace idem::core
