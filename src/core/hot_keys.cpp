#include "core/hot_keys.hpp"

#include <algorithm>
#include <cstring>

namespace idem::core {
namespace {

// The compiler makes two comparisons of this, and a loop over the bytes of the operator ==.
bool is_same(const Digest& one, const Digest& other) noexcept {
    return std::memcmp(one.data(), other.data(), sizeof(Digest)) == 0;
}

void add(HotKey& key, std::int64_t weight, std::int64_t now) noexcept {
    key.count += weight;
    key.first_seen = std::min(key.first_seen, now);
    key.last_seen = std::max(key.last_seen, now);
}

bool is_forgotten(const HotKey& key, std::int64_t now) noexcept {
    return key.last_seen < now - forgotten_after;
}

}  // namespace

void count_hot_key(std::span<HotKey> places, std::uint32_t& used, const Digest& digest,
                   std::int64_t weight, std::int64_t now) noexcept {
    HotKey* lowest = places.data();
    HotKey* forgotten = nullptr;
    for (HotKey& key : places.first(used)) {
        if (is_same(key.digest, digest)) return add(key, weight, now);
        if (key.count < lowest->count) lowest = &key;
        if (is_forgotten(key, now)) forgotten = &key;
    }
    if (used < places.size()) {
        places[used++] = {digest, weight, 0, now, now};
        return;
    }
    const std::int64_t before = lowest->count;
    HotKey& place = forgotten != nullptr ? *forgotten : *lowest;
    place = {digest, before + weight, before, now, now};
}

}  // namespace idem::core
