// Gives any text to decode(): it must refuse the text, or encode() must give the same text again.
#include <algorithm>
#include <cstdlib>

#include "core/token.hpp"
#include "input.hpp"

using namespace idem::core;

namespace {

void check(std::string_view text) {
    Token token{};
    if (!decode(text, token)) return;
    if (encode(token).view() != text) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const char* data, std::size_t size) {
    const std::string_view text(data, size);
    check(text);

    // Conversely, decode() must read any token as encode() wrote it.
    Token any{};
    any.kind = size % 2 == 0 ? TokenKind::atomic : TokenKind::leased;
    const Bytes bytes = as_bytes(text.substr(0, any.digest.size()));
    std::copy(bytes.begin(), bytes.end(), any.digest.begin());
    if (size >= 12) {
        any.attempt = static_cast<std::uint32_t>(from_big_endian(as_bytes(text.substr(0, 4))));
        any.random = from_big_endian(as_bytes(text.substr(4, 8)));
    }
    if (size >= 16)
        any.table = static_cast<std::uint32_t>(from_big_endian(as_bytes(text.substr(12, 4))));
    TokenText written = encode(any);
    Token token{};
    if (!decode(written.view(), token) || token != any) std::abort();

    // Texts that differ little from a token are more likely to be accepted than arbitrary ones.
    for (std::size_t i = 0; i + 1 < size; i += 2) {
        written.digits[static_cast<unsigned char>(data[i]) % written.digits.size()] = data[i + 1];
        check(written.view());
    }
    return 0;
}
