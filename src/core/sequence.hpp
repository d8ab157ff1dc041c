// What a message's sequence number says, given the watermark of its source.
//
// The watermark is the highest number seen. The first message of a source may have any number:
// where a stream begins is the source's business. Pure; nothing thrown.
#pragma once

#include <cstdint>
#include <optional>

namespace idem::core {

enum class Step {
    ahead,   // new: the watermark moves here
    behind,  // seen before, or passed over
    gap,     // new, but something before it is missing
};

constexpr Step step(std::optional<std::int64_t> watermark, std::int64_t seq,
                    bool contiguous) noexcept {
    if (!watermark) return Step::ahead;
    if (seq <= *watermark) return Step::behind;
    if (contiguous && seq - 1 != *watermark) return Step::gap;
    return Step::ahead;
}

}  // namespace idem::core
