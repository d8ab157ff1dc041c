// Takes any scope, tenant and key, of any length. Checks digests against the hash of a message that
// is put together as the documentation of the digest says, and that no other boundary between the
// texts, no other scope and no source has the same digest.
#include <openssl/sha.h>

#include <algorithm>
#include <string>

#include "core/digest.hpp"
#include "core/key.hpp"
#include "input.hpp"

using namespace idem::core;

namespace {

template <std::size_t Width>
void put_number(std::string& out, std::uint64_t value) {
    const auto bytes = big_endian<Width>(value);
    out.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void put_text(std::string& out, std::string_view text) {
    put_number<4>(out, text.size());
    out += text;
}

Digest expected(const QualifiedKey& key, bool source) {
    std::string message;
    put_number<8>(message, static_cast<std::uint64_t>(key.scope_id));
    put_text(message, key.tenant);
    put_text(message, key.key);
    if (source) put_text(message, "source");
    Hash hash;
    SHA256(reinterpret_cast<const unsigned char*>(message.data()), message.size(),
           reinterpret_cast<unsigned char*>(hash.data()));
    std::string prefix;
    const auto time = source ? std::nullopt : embedded_time(key.key);
    if (time) put_number<6>(prefix, *time);
    Digest out;
    std::copy_n(hash.begin(), out.size() - prefix.size(), out.begin() + prefix.size());
    std::memcpy(out.data(), prefix.data(), prefix.size());
    return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const char* data, std::size_t size) {
    Input in({data, size});
    const auto scope = static_cast<std::int64_t>(in.number());
    const auto seed = in.bits<AesKey>();
    std::string tenant(in.text(in.byte()));
    std::string key(in.rest());
    // Longer than the buffer of a hash.
    if (in.byte() == 'L') key.append(key.size() * 16, 'x');

    const QualifiedKey qualified{scope, tenant, key};
    Digest digest{};
    Digest source{};
    require(key_digest(qualified, digest) && source_digest(qualified, source));
    require(digest == expected(qualified, false));
    require(source == expected(qualified, true));
    require(digest != source);

    Digest other{};
    require(key_digest({scope ^ 1, tenant, key}, other) && other != digest);
    if (!tenant.empty()) {
        key.insert(key.begin(), tenant.back());
        tenant.pop_back();
        require(key_digest({scope, tenant, key}, other) && other != digest);
    }

    Digest sealed{};
    Digest opened{};
    require(seal(seed, digest, sealed) && unseal(seed, sealed, opened));
    require(sealed != digest && opened == digest);
    std::uint64_t id = 0;
    require(lock_id(seed, digest, id));
    // With the seed as the key of both, the lock id would be the half of the sealed digest.
    require(id == from_big_endian(Bytes(sealed).first(8)));
    return 0;
}
