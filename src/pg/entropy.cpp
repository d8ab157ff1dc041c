#include "pg/entropy.hpp"

#include "pg/report.hpp"

namespace idem::pg {
namespace {

constinit std::array<std::uint64_t, 64> stock{};
constinit std::size_t left = 0;

}  // namespace

std::uint64_t random_bits() {
    if (left == 0) {
        if (!pg_strong_random(stock.data(), sizeof stock)) report::crypto_failure();
        left = stock.size();
    }
    --left;
    const std::uint64_t drawn = stock[left];
    stock[left] = 0;
    return drawn;
}

}  // namespace idem::pg
