// idem.max_answer_size: how large what one call stores may be.
//
// Judged by the size of the values as they are passed, before compression and TOAST, so that the
// same answer is always accepted or always refused. Callers of claims pay for storage that is not
// theirs; and what is too large to be read again must not get in.
#pragma once

#include <initializer_list>

#include "pg/server.hpp"

namespace idem::api {

// NULL counts nothing. Raises 54000.
void check_stored_size(const char* what, std::initializer_list<const void*> values);

}  // namespace idem::api
