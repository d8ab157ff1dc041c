#include "core/hmac.hpp"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/params.h>

namespace idem::core {
namespace {

const unsigned char* raw(Bytes bytes) noexcept {
    return reinterpret_cast<const unsigned char*>(bytes.data());
}

EVP_MAC_CTX* new_context() noexcept {
    EVP_MAC* hmac = EVP_MAC_fetch(nullptr, "HMAC", nullptr);
    if (hmac == nullptr) return nullptr;
    EVP_MAC_CTX* context = EVP_MAC_CTX_new(hmac);
    EVP_MAC_free(hmac);  // the context keeps its own reference
    return context;
}

}  // namespace

bool Hmac::key_with(const Secret& secret) noexcept {
    if (context_ == nullptr) context_ = new_context();
    if (context_ == nullptr) return false;
    char sha256[] = "SHA256";
    const OSSL_PARAM parameters[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, sha256, 0),
        OSSL_PARAM_construct_end()};
    keyed_ = EVP_MAC_init(context_, raw(secret), secret.size(), parameters) == 1;
    keyed_with_ = secret;
    return keyed_;
}

bool Hmac::start(const Secret& secret) noexcept {
    good_ = keyed_ && keyed_with_ == secret ? EVP_MAC_init(context_, nullptr, 0, nullptr) == 1
                                            : key_with(secret);
    return good_;
}

void Hmac::write(Bytes bytes) noexcept {
    good_ = good_ && EVP_MAC_update(context_, raw(bytes), bytes.size()) == 1;
}

bool Hmac::finish(Hash& out) noexcept {
    std::size_t written = 0;
    auto* mac = reinterpret_cast<unsigned char*>(out.data());
    return good_ && EVP_MAC_final(context_, mac, &written, out.size()) == 1 &&
           written == out.size();
}

}  // namespace idem::core
