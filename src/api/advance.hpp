// The watermark of a source, for functions other than idem.advance().
#pragma once

#include "pg/lock.hpp"
#include "pg/record.hpp"

namespace idem::api {

// Sets the watermark, or deletes it, whatever it was; returns what it was. Takes the source's key
// lock and releases it in the same call, as change_record() does. Raises ID001 if another
// transaction is advancing the source for longer than the bound.
std::optional<std::int64_t> reset_stream(const pg::KeyName& source, std::optional<std::int64_t> seq,
                                         const pg::WaitBound& bound);

}  // namespace idem::api
