#include "core/hot_keys.hpp"

#include <algorithm>
#include <span>

namespace idem::core {
namespace {

std::span<HotKey> used_places(HotKeys& sketch) noexcept {
    return std::span(sketch.keys).first(sketch.used);
}

bool is_forgotten(const HotKey& key, std::int64_t now) noexcept {
    return key.last_seen < now - forgotten_after;
}

void add(HotKey& key, std::int64_t weight, std::int64_t now) noexcept {
    key.count += weight;
    key.first_seen = std::min(key.first_seen, now);
    key.last_seen = std::max(key.last_seen, now);
}

// The place that the next new key takes, in a sketch without a free one.
HotKey& place_to_give_up(std::span<HotKey> keys, HotKey& lowest, std::int64_t now) noexcept {
    for (HotKey& key : keys)
        if (is_forgotten(key, now)) return key;
    return lowest;
}

}  // namespace

void count_hot_key(HotKeys& sketch, const Digest& digest, std::int64_t weight,
                   std::int64_t now) noexcept {
    const std::span<HotKey> keys = used_places(sketch);
    for (HotKey& key : keys)
        if (key.digest == digest) return add(key, weight, now);
    if (sketch.used < hot_key_places) {
        sketch.keys[sketch.used++] = {digest, weight, 0, now, now};
        return;
    }
    HotKey& lowest = *std::min_element(
        keys.begin(), keys.end(),
        [](const HotKey& one, const HotKey& other) { return one.count < other.count; });
    const std::int64_t before = lowest.count;
    place_to_give_up(keys, lowest, now) = {digest, before + weight, before, now, now};
}

}  // namespace idem::core
