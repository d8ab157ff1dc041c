// Faults that an administrator asks for, to test clients: idem.test_crash_rate and
// idem.test_duplicate_rate. They meet operations of idem.execute() that have just been run, and
// none under rehearsal.
#pragma once

namespace idem::pg {

// Whether the client is to get the answer of a second call.
bool is_duplicated();

// Cuts the client off now or after the commit, with the probability that is set. Without an answer,
// the client cannot tell whether the transaction has committed.
void maybe_crash();

void init_faults();

}  // namespace idem::pg
