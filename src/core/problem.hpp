// What an HTTP client is told of an error: status, and the type and title of RFC 9457.
//
// idem's own errors have a type each, a URI that never changes. For any other the type is
// "about:blank", which says that the status is all there is to know; the title is then HTTP's.
// Pure functions; no allocation, nothing thrown.
#pragma once

#include <string_view>

namespace idem::core {

struct Problem {
    int status;
    std::string_view type;
    std::string_view title;
};

// The SQLSTATE must be one by its shape (see sqlstate.hpp). All views are ASCII without quotes.
Problem problem_of(std::string_view sqlstate) noexcept;

}  // namespace idem::core
