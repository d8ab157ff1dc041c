// Takes any bytes as tenant and key. Checks that the digest depends on the boundary between the two
// and begins with the time in the key, and that the key's shape, age and weakness are consistent.
#include <cstdlib>

#include "core/digest.hpp"
#include "core/key.hpp"
#include "input.hpp"

using namespace idem::core;

namespace {

Digest digest_of(std::int64_t scope, std::string_view tenant, std::string_view key) {
    Digest out{};
    if (!key_digest({scope, tenant, key}, out)) std::abort();
    return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const char* data, std::size_t size) {
    const std::string_view all(data, size);
    const std::size_t split = all.empty() ? 0 : static_cast<unsigned char>(all[0]) % size;
    const std::string_view tenant = all.substr(0, split);
    const std::string_view key = all.substr(split);

    const Digest digest = digest_of(1, tenant, key);
    if (const auto time = embedded_time(key)) {
        if (*time >> 48 != 0) std::abort();
        if (from_big_endian(Bytes(digest).first(6)) != *time) std::abort();
    }
    if (is_stale(key, 1'700'000'000'000'000, 86'400'000'000) && !embedded_time(key)) std::abort();

    if (digest_of(1, tenant, key) != digest) std::abort();
    if (digest_of(2, tenant, key) == digest) std::abort();
    if (split > 0 && digest_of(1, all.substr(0, split - 1), all.substr(split - 1)) == digest)
        std::abort();

    std::uint64_t id = 0;
    if (!lock_id(LockSeed{}, digest, id)) std::abort();
    return 0;
}
