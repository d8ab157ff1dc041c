// SHA-256, a piece at a time.
//
// One digest at a time in a process: constructing one starts over, so a digest that was never
// finished leaves nothing behind. OpenSSL's algorithm is fetched once per process; not thread-safe;
// nothing is thrown.
#pragma once

#include "core/bytes.hpp"

namespace idem::core {

using Hash = std::array<std::byte, 32>;

class Sha256 {
  public:
    Sha256() noexcept;
    void write(Bytes bytes) noexcept;
    // False when OpenSSL refuses to work; out is then undefined.
    [[nodiscard]] bool finish(Hash& out) noexcept;

  private:
    bool good_;
};

}  // namespace idem::core
