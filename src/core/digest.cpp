#include "core/digest.hpp"

#include <algorithm>

#include "core/key.hpp"

namespace idem::core {
namespace {

constexpr std::size_t time_bytes = 6;

// Collects what is to be hashed: one call into OpenSSL costs less than five.
class Message {
  public:
    template <std::size_t Width>
    void add_number(std::uint64_t value) noexcept {
        add(big_endian<Width>(value));
    }
    void add_text(std::string_view text) noexcept {
        add_number<4>(text.size());
        add(as_bytes(text));
    }
    Bytes bytes() const noexcept { return Bytes(buffer_).first(used_); }
    bool fits() const noexcept { return fits_; }

  private:
    void add(Bytes piece) noexcept {
        fits_ = fits_ && piece.size() <= buffer_.size() - used_;
        if (!fits_) return;
        std::copy(piece.begin(), piece.end(), buffer_.begin() + static_cast<std::ptrdiff_t>(used_));
        used_ += piece.size();
    }

    std::array<std::byte, 2048> buffer_;  // 255 bytes each of tenant and key can grow in UTF-8
    std::size_t used_ = 0;
    bool fits_ = true;
};

Message message_of(const QualifiedKey& key) noexcept {
    Message message;
    message.add_number<8>(static_cast<std::uint64_t>(key.scope_id));
    message.add_text(key.tenant);
    message.add_text(key.key);
    return message;
}

bool hash(const Message& message, Hash& out) noexcept {
    if (!message.fits()) return false;
    Sha256 sha256;
    sha256.write(message.bytes());
    return sha256.finish(out);
}

constinit BlockCipher lock_cipher(BlockCipher::Direction::encrypt);
constinit BlockCipher sealer(BlockCipher::Direction::encrypt);
constinit BlockCipher opener(BlockCipher::Direction::decrypt);

}  // namespace

bool key_digest(const QualifiedKey& key, Digest& out) noexcept {
    Hash full;
    if (!hash(message_of(key), full)) return false;

    const auto time = embedded_time(key.key);
    const auto prefix = big_endian<time_bytes>(time.value_or(0));
    auto rest = out.begin();
    if (time) rest = std::copy(prefix.begin(), prefix.end(), out.begin());
    std::copy_n(full.begin(), out.end() - rest, rest);
    return true;
}

// With a third text, the message differs from that of every key.
bool source_digest(const QualifiedKey& source, Digest& out) noexcept {
    Hash full;
    Message message = message_of(source);
    message.add_text("source");
    if (!hash(message, full)) return false;
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

}  // namespace idem::core
