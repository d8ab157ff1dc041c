// Random bits for tokens and keys.
//
// Asking OpenSSL costs system calls, whatever the size: bits are drawn a page at a time. They are
// used once and wiped from the stock. Backend-local.
#pragma once

#include <cstdint>

namespace idem::pg {

std::uint64_t random_bits();

}  // namespace idem::pg
