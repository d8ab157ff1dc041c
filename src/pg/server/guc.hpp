// The settings (GUCs), registered once when the library is loaded.
#pragma once

namespace idem::pg::guc {

extern char* tenant;         // idem.tenant: the tenant of calls that name none
extern int max_open_claims;  // idem.max_open_claims: key locks per transaction
extern int counted_scopes;   // idem.counted_scopes: scopes with counters in shared memory
extern int limited_tenants;  // idem.limited_tenants: token buckets in shared memory
extern int purge_naptime;    // idem.purge_naptime: between two runs, in ms; 0: no purging
extern int log_conflicts;    // idem.log_conflicts: a level of elog.h; 0: off
extern int log_transitions;  // idem.log_transitions: a level of elog.h; 0: off
extern int purge_rate;       // idem.purge_rate: records per second; 0: no limit

// Whether the server has preloaded the library. If not, there is no shared memory and no worker.
extern bool preloaded;

void define();

}  // namespace idem::pg::guc
