// Takes any texts as SQLSTATEs. Checks that the shape is recognized as a list of its characters
// says, that the most specific entry of the tables decides, and that no code which tells a client
// to retry can be stored as a final failure.
#include <utility>

#include "core/errors.hpp"
#include "input.hpp"

using namespace idem::core;

namespace {

constexpr std::string_view characters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";

// The status and the retry of the longest entry that the code begins with.
std::pair<int, Retry> longest_match(std::string_view code) {
    std::pair<int, Retry> found{500, Retry::futile};
    std::size_t length = 0;
    for (const ServerError& e : server_errors)
        if (code.starts_with(e.sqlstate) && e.sqlstate.size() > length) {
            found = {e.http_status, e.retry};
            length = e.sqlstate.size();
        }
    for (const Error& e : own_errors)
        if (code == e.sqlstate) found = {e.http_status, e.retry};
    return found;
}

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

    const Error error = error_of(code);
    const auto [status, retry] = longest_match(code);
    require(error.sqlstate == code && error.http_status == status && error.retry == retry);
    require(!error.title.empty());
    require(is_transient(code) == (retry == Retry::may_cure));

    const FailureFault fault = failure_fault(code);
    if (fault == FailureFault::none) require(!is_ours(code) && !is_transient(code));
    if (fault == FailureFault::transient) require(is_transient(code));
    if (fault == FailureFault::ours) require(code.starts_with("ID"));
    if (fault == FailureFault::no_failure) require(code[0] == '0' && code[1] <= '3');
    return 0;
}
