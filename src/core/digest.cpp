#include "core/digest.hpp"

#include <openssl/evp.h>

#include <algorithm>

#include "core/key.hpp"

namespace idem::core {
namespace {

constexpr std::size_t time_bytes = 6;

// Both live as long as the process: a backend digests for as long as it claims.
constinit EVP_MD* sha256 = nullptr;
constinit EVP_MD_CTX* context = nullptr;

bool ready() noexcept {
    if (sha256 == nullptr) sha256 = EVP_MD_fetch(nullptr, "SHA256", nullptr);
    if (context == nullptr) context = EVP_MD_CTX_new();
    return sha256 != nullptr && context != nullptr;
}

bool add(Bytes bytes) noexcept {
    return EVP_DigestUpdate(context, bytes.data(), bytes.size()) == 1;
}

bool add_with_length(std::string_view text) noexcept {
    return add(big_endian<4>(text.size())) && add(as_bytes(text));
}

}  // namespace

bool key_digest(const Identity& identity, Digest& out) noexcept {
    std::array<unsigned char, EVP_MAX_MD_SIZE> full{};
    const bool digested = ready() && EVP_DigestInit_ex2(context, sha256, nullptr) == 1 &&
                          add(big_endian<8>(static_cast<std::uint64_t>(identity.scope_id))) &&
                          add_with_length(identity.tenant) && add_with_length(identity.key) &&
                          EVP_DigestFinal_ex(context, full.data(), nullptr) == 1;
    if (!digested) return false;

    const auto time = embedded_time(identity.key);
    const auto prefix = big_endian<time_bytes>(time.value_or(0));
    auto rest = out.begin();
    if (time) rest = std::copy(prefix.begin(), prefix.end(), out.begin());
    std::transform(full.begin(), full.begin() + (out.end() - rest), rest,
                   [](unsigned char c) { return static_cast<std::byte>(c); });
    return true;
}

}  // namespace idem::core
