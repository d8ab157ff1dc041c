// idem.rotate_secret(): a new secret for the fingerprints to come. Who may call it is a matter of
// EXECUTE. Locks the table of secrets until the transaction ends; claims don't wait for that.
#include "pg/secret.hpp"

#include "api/arguments.hpp"

IDEM_FUNCTION(idem_rotate_secret) {
    using namespace idem;
    api::require_writable("idem.rotate_secret()");
    PG_RETURN_INT32(pg::rotate_fingerprint_secret());
}
