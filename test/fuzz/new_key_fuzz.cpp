// Takes any times, random bits and texts. Checks that new keys are UUIDv7s in order whose time can
// be read back, and child keys against the hash of a message that is put together in a string.
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <string>

#include "core/digest.hpp"
#include "core/key.hpp"
#include "input.hpp"

using namespace idem::core;

namespace {

std::string_view view(const auto& text) {
    return {text.data(), text.size()};
}

std::string with_length(std::string_view text) {
    const auto length = big_endian<4>(text.size());
    return std::string(reinterpret_cast<const char*>(length.data()), 4) + std::string(text);
}

std::string hex(const Hash& hash) {
    std::string out(64, ' ');
    put_hex(hash, out.begin());
    return out;
}

void check_uuids(Input& in) {
    std::uint64_t tick = uuid_tick(in.number_to(INT64_MAX / 1000));
    std::string last;
    for (int i = 0; i < 4; ++i) {
        const auto usecs = static_cast<std::int64_t>(in.number()) % (std::int64_t{1} << 57);
        const std::uint64_t next = next_uuid_tick(tick, usecs);
        require(next > tick && next >= uuid_tick(usecs));
        tick = next;
        if (tick >> 60 != 0) return;  // the year 10889
        const std::string uuid(view(uuid_v7(tick, in.number())));
        require(embedded_time(uuid) == tick >> 12);
        require(uuid > last);
        require(!uuid.empty() && uuid.size() <= max_key_bytes);
        last = uuid;
    }
    const std::int64_t usecs = in.number_to(std::int64_t{1} << 57);
    require(uuid_tick(usecs) >> 12 == static_cast<std::uint64_t>(usecs) / 1000);
    require(uuid_tick(usecs) <= uuid_tick(usecs + 1));
}

void check_child(Input& in) {
    const auto seed = in.bits<Secret>();
    const auto digest = in.bits<Digest>();
    const std::string_view step = in.rest();
    const std::string message =
        with_length("idem.child_key") +
        std::string(reinterpret_cast<const char*>(digest.data()), digest.size()) +
        with_length(step);
    KeyText key;
    Hash hash;
    require(child_key(seed, digest, step, key));
    HMAC(EVP_sha256(), seed.data(), static_cast<int>(seed.size()),
         reinterpret_cast<const unsigned char*>(message.data()), message.size(),
         reinterpret_cast<unsigned char*>(hash.data()), nullptr);
    require(view(key) == hex(hash));
    require(weakness(view(key)).empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const char* data, std::size_t size) {
    Input in({data, size});
    check_uuids(in);
    check_child(in);
    return 0;
}
