// Takes any messages, in pieces of any size, and any keys. Checks hashes and ciphers against
// OpenSSL's own functions for whole messages, also when a message before was abandoned or another
// key is set.
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>

#include <algorithm>

#include "core/crypto.hpp"
#include "input.hpp"

using namespace idem::core;

namespace {

const unsigned char* raw(std::string_view text) {
    return reinterpret_cast<const unsigned char*>(text.data());
}

template <class Function>
void write_pieces(Function& function, std::string_view message, std::size_t piece) {
    for (; !message.empty(); message.remove_prefix(std::min(piece, message.size())))
        function.write(as_bytes(message.substr(0, piece)));
}

AesBlock encrypted(const AesKey& key, const AesBlock& in) {
    std::array<unsigned char, 32> out{};
    int written = 0;
    EVP_CIPHER_CTX* context = EVP_CIPHER_CTX_new();
    require(EVP_EncryptInit(context, EVP_aes_128_ecb(),
                            reinterpret_cast<const unsigned char*>(key.data()), nullptr) == 1);
    require(EVP_EncryptUpdate(context, out.data(), &written,
                              reinterpret_cast<const unsigned char*>(in.data()), 16) == 1);
    require(written == 16);
    EVP_CIPHER_CTX_free(context);
    AesBlock block;
    std::memcpy(block.data(), out.data(), block.size());
    return block;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const char* data, std::size_t size) {
    static BlockCipher encrypt(BlockCipher::Direction::encrypt);
    static BlockCipher decrypt(BlockCipher::Direction::decrypt);

    Input in({data, size});
    const unsigned flags = in.byte();
    const std::size_t piece = 1 + in.byte();
    const auto secret = in.bits<Secret>();
    const auto key = in.bits<AesKey>();
    const auto block = in.bits<AesBlock>();
    const std::string_view message = in.rest();

    if (flags & 1) Sha256().write(as_bytes(message));  // abandoned
    Sha256 sha256;
    write_pieces(sha256, message, piece);
    Hash hash;
    Hash whole;
    require(sha256.finish(hash));
    SHA256(raw(message), message.size(), reinterpret_cast<unsigned char*>(whole.data()));
    require(hash == whole);

    if (flags & 2) Hmac(hash).write(as_bytes(message));  // abandoned
    for (int repeat = 0; repeat < 2; ++repeat) {
        Hmac hmac(secret);
        write_pieces(hmac, message, piece);
        require(hmac.finish(hash));
        HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()), raw(message),
             message.size(), reinterpret_cast<unsigned char*>(whole.data()), nullptr);
        require(hash == whole);
    }

    AesBlock sealed;
    AesBlock opened;
    require(encrypt.apply(key, block, sealed) && sealed == encrypted(key, block));
    require(decrypt.apply(key, sealed, opened) && opened == block);
    return 0;
}
