#include "api/stored_size.hpp"

#include "pg/guc.hpp"
#include "pg/report.hpp"

namespace idem::api {

void check_stored_size(const char* what, std::initializer_list<const void*> values) {
    Size size = 0;
    for (const void* value : values)
        if (value != nullptr) size += VARSIZE_ANY_EXHDR(value);
    if (size > Size{1024} * static_cast<Size>(pg::guc::max_answer_size))
        pg::report::too_large(what, size);
}

}  // namespace idem::api
