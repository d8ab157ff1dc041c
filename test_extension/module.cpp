// The library of the extension idem_test: its magic block, and the hook by which idem's calls reach
// it (pg/server/test_seam).
#include "faults.hpp"
#include "pg/server/compat.hpp"
#include "pg/server/test_seam.hpp"
#include "pg/server/values.hpp"
#include "rehearsal.hpp"

extern "C" {
PG_MODULE_MAGIC_EXT(.name = "idem_test", .version = IDEM_VERSION);
PGDLLEXPORT void _PG_init(void);
}

namespace idem::testing {
namespace {

bool at_event(pg::seam::Event event, const char* name) {
    using pg::seam::Event;
    switch (event) {
        case Event::call:
            if (rehearsing) note_step(name);
            break;
        case Event::conflict:
            note_conflict();
            break;
        case Event::noted:
            return rehearsing;
        case Event::granting:
            return is_busy();
        case Event::claimed:
        case Event::finished:
            maybe_crash();
            break;
    }
    return false;
}

}  // namespace

// How many backends wait for a wake-up. No script declares it; idem's own tests do.
IDEM_FUNCTION(idem_test_announced_waits) {
    (void)fcinfo;
    const auto announced_waits = pg::seam::find()->announced_waits;  // NULL until idem is loaded
    PG_RETURN_INT32(announced_waits == nullptr ? 0 : announced_waits());
}

}  // namespace idem::testing

void _PG_init(void) {
    idem::testing::init_faults();
    idem::pg::seam::find()->hook = idem::testing::at_event;
}
