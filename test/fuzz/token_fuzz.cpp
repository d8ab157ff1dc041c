// Any text given to decode(): it is refused, or it is exactly what encode() makes of the result.
#include <algorithm>
#include <cstdlib>

#include "core/token.hpp"

extern "C" int LLVMFuzzerTestOneInput(const char* data, std::size_t size) {
    using namespace idem::core;
    const std::string_view text(data, size);
    Token token{};
    if (decode(text, token)) {
        const TokenText again = encode(token);
        if (!std::equal(text.begin(), text.end(), again.begin(), again.end())) std::abort();
    }

    // The other way round: any token is read back as itself.
    Token any{};
    const Bytes bytes = as_bytes(text.substr(0, any.digest.size()));
    std::copy(bytes.begin(), bytes.end(), any.digest.begin());
    if (size >= 12) {
        any.attempt = static_cast<std::uint32_t>(from_big_endian(as_bytes(text.substr(0, 4))));
        any.random = from_big_endian(as_bytes(text.substr(4, 8)));
    }
    const TokenText written = encode(any);
    if (!decode({written.data(), written.size()}, token) || token != any) std::abort();
    return 0;
}
