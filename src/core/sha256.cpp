#include "core/sha256.hpp"

#include <openssl/evp.h>

namespace idem::core {
namespace {

// Both live as long as the process: a backend digests for as long as it claims.
constinit EVP_MD* algorithm = nullptr;
constinit EVP_MD_CTX* context = nullptr;

bool ready() noexcept {
    if (algorithm == nullptr) algorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
    if (context == nullptr) context = EVP_MD_CTX_new();
    return algorithm != nullptr && context != nullptr;
}

}  // namespace

Sha256::Sha256() noexcept
    : good_(ready() && EVP_DigestInit_ex2(context, algorithm, nullptr) == 1) {}

void Sha256::write(Bytes bytes) noexcept {
    good_ = good_ && EVP_DigestUpdate(context, bytes.data(), bytes.size()) == 1;
}

bool Sha256::finish(Hash& out) noexcept {
    static_assert(sizeof(Hash) == 32, "EVP_DigestFinal_ex writes as many bytes as SHA-256 has");
    auto* bytes = reinterpret_cast<unsigned char*>(out.data());
    return good_ && EVP_DigestFinal_ex(context, bytes, nullptr) == 1;
}

}  // namespace idem::core
