#include "core/digest.hpp"

#include <algorithm>

#include "core/key.hpp"

namespace idem::core {
namespace {

void write_key(Sha256& message, const QualifiedKey& key) noexcept {
    message.write(big_endian<8>(static_cast<std::uint64_t>(key.scope_id)));
    write_text(message, key.tenant);
    write_text(message, key.key);
}

constinit BlockCipher lock_cipher(BlockCipher::Direction::encrypt);
constinit BlockCipher sealer(BlockCipher::Direction::encrypt);
constinit BlockCipher opener(BlockCipher::Direction::decrypt);

}  // namespace

bool key_digest(const QualifiedKey& key, Digest& out) noexcept {
    Sha256 message;
    write_key(message, key);
    Hash full;
    if (!message.finish(full)) return false;

    auto rest = out.begin();
    if (const auto time = embedded_time(key.key))
        rest = std::ranges::copy(big_endian<6>(*time), rest).out;
    std::copy_n(full.begin(), out.end() - rest, rest);
    return true;
}

// With a third text, the message differs from that of every key.
bool source_digest(const QualifiedKey& source, Digest& out) noexcept {
    Sha256 message;
    write_key(message, source);
    write_text(message, "source");
    Hash full;
    if (!message.finish(full)) return false;
    std::copy_n(full.begin(), out.size(), out.begin());
    return true;
}

bool lock_id(const LockSeed& seed, const Digest& digest, std::uint64_t& out) noexcept {
    AesBlock block;
    if (!lock_cipher.apply(seed, digest, block)) return false;
    out = from_big_endian(Bytes(block).first(8));
    return true;
}

bool seal(const SealKey& key, const Digest& digest, Digest& out) noexcept {
    return sealer.apply(key, digest, out);
}

bool unseal(const SealKey& key, const Digest& sealed, Digest& out) noexcept {
    return opener.apply(key, sealed, out);
}

bool child_key(const Secret& seed, const Digest& digest, std::string_view step,
               KeyText& out) noexcept {
    Hmac message(seed);
    write_text(message, "idem.child_key");
    message.write(digest);
    write_text(message, step);
    Hash hash;
    if (!message.finish(hash)) return false;
    put_hex(hash, out.begin());
    return true;
}

}  // namespace idem::core
