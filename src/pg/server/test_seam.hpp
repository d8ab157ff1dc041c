// Where the extension idem_test (test_extension/) meets idem. Neither library needs the other to be
// loaded. Without a hook, each place pays for a test of one pointer.
//
// Backend-local; no locking. The number in the name changes with the layout of Seam or Claim, so
// that libraries of different builds pass each other by.
#pragma once

#include "pg/server/postgres.hpp"

namespace idem::pg {

struct Claim;

namespace seam {

enum class Event {
    call,      // a function that writes is called, and has done nothing yet; name is its name
    granting,  // a claim is about to be granted; true refuses it, as if the key were held elsewhere
    claimed,   // a claim has been granted
    conflict,  // a claim has met a key of another request
    finished,  // a claim has been completed or has failed
    noted,     // keys were finished without claims, of which a note exists; true makes another
};

struct Seam {
    bool (*hook)(Event event, const char* name);  // idem_test's; NULL: none
    const Claim* (*newest_claim)();               // idem's, as the next
    int (*announced_waits)();                     // how many backends wait for a wake-up
};

inline Seam* find() {
    void** place = find_rendezvous_variable("idem_test 2");
    if (*place == nullptr) *place = MemoryContextAllocZero(TopMemoryContext, sizeof(Seam));
    return static_cast<Seam*>(*place);
}

}  // namespace seam

// Of this process; found by init_test_seam().
extern seam::Seam* test_seam;

// What the hook says; false without one.
inline bool at_seam(seam::Event event, const char* name = nullptr) {
    return test_seam->hook != nullptr && test_seam->hook(event, name);
}

}  // namespace idem::pg
