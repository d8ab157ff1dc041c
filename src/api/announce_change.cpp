// idem.announce_change(): the trigger of the tables that every backend caches, idem.scope and
// idem.secret. Our own functions write past the executor and announce what they do; the trigger
// does it for everybody else: a superuser's statement, a restored dump, a subscription. So it is a
// row trigger that is always enabled: an apply worker fires no other. TRUNCATE needs none: the
// server announces it by itself, as it announces all that changes a table's files.
#include "pg/boundary.hpp"

IDEM_FUNCTION(idem_announce_change) {
    if (!CALLED_AS_TRIGGER(fcinfo)) idem::pg::report::announce_change_called_directly();
    CacheInvalidateRelcache(reinterpret_cast<const TriggerData*>(fcinfo->context)->tg_relation);
    return Datum{0};  // what a row trigger returns after the event counts for nothing
}
