// Takes any texts as SQLSTATEs. Checks that the shape is recognized as a list of its characters
// says, and that no code which tells a client to retry can be stored as a final failure.
#include "core/errors.hpp"
#include "input.hpp"

using namespace idem::core;

namespace {

constexpr std::string_view characters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const char* data, std::size_t size) {
    Input in({data, size});
    const std::string_view entries[] = {in.text(in.byte() % 8), in.text(in.byte() % 8)};
    const std::string_view code = in.rest();

    const bool fits = code.size() == 5 && code.find_first_not_of(characters) == code.npos;
    require(is_sqlstate(code) == fits);
    require((failure_fault(code) == FailureFault::malformed) == !fits);
    require(!(is_sqlstate(code) && is_sqlstate_class(code)));

    bool listed = false;
    for (const std::string_view e : entries) listed = listed || e == code || e == code.substr(0, 2);
    require(lists(entries, code) == listed);
    require(is_final(entries, code) == (listed && failure_fault(code) == FailureFault::none));
    if (!fits) return 0;

    bool transient = false;
    for (const std::string_view e : transient_errors) transient = transient || code.starts_with(e);
    const FailureFault fault = failure_fault(code);
    if (fault == FailureFault::none) require(!code.starts_with("ID") && !transient);
    if (fault == FailureFault::transient) require(transient);
    if (fault == FailureFault::ours) require(code.starts_with("ID"));
    if (fault == FailureFault::no_failure) require(code[0] == '0' && code[1] <= '3');
    return 0;
}
