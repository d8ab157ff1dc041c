// Faults that an administrator asks for, to test clients and applications: the settings
// idem_test.busy_rate, idem_test.crash_rate and idem_test.duplicate_rate. None meets a rehearsal.
#pragma once

namespace idem::testing {

// Whether the claim that is about to be granted is to be refused, as if another delivery of the
// request were in progress.
bool is_busy();

// Cuts the client off now or after the commit, with the probability that is set. Without an answer,
// the client cannot tell whether the transaction has committed.
void maybe_crash();

void init_faults();

}  // namespace idem::testing
