// Shared by the fuzzers: reads numbers and texts from the input, and ends the process when
// something does not hold.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "core/bytes.hpp"

// What a fuzzer defines: libFuzzer or replay.cpp calls it with each input.
extern "C" int LLVMFuzzerTestOneInput(const char* data, std::size_t size);

inline void require(bool holds, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    if (holds) return;
    std::fprintf(stderr, "%s:%d: this does not hold\n", file, line);
    std::abort();
}

// Reads the input in pieces; after its end there are only zeros.
class Input {
  public:
    explicit Input(std::string_view bytes) : bytes_(bytes) {}

    bool done() const { return bytes_.empty(); }
    std::string_view rest() const { return bytes_; }

    unsigned byte() { return done() ? 0 : static_cast<unsigned char>(text(1)[0]); }

    std::string_view text(std::size_t size) {
        const std::string_view taken = bytes_.substr(0, size);
        bytes_.remove_prefix(taken.size());
        return taken;
    }

    // Big-endian.
    std::uint64_t number(std::size_t width = 8) {
        return idem::core::from_big_endian(idem::core::as_bytes(text(width)));
    }
    std::int64_t number_to(std::int64_t most) {
        return static_cast<std::int64_t>(number() % (static_cast<std::uint64_t>(most) + 1));
    }

    // As many random bits: a key, a seed or a digest.
    template <class Bits>
    Bits bits() {
        Bits out{};
        const std::string_view taken = text(out.size());
        if (!taken.empty()) std::memcpy(out.data(), taken.data(), taken.size());
        return out;
    }

  private:
    std::string_view bytes_;
};
