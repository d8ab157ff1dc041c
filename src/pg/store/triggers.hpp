// The triggers of tables whose rows idem writes without the executor: pg/store/table calls this for
// every row that it inserts, updates or deletes. Tools that audit changes rely on them, and
// tools that rebuild a table beside its readers and carry over what changes meanwhile.
//
// AFTER triggers fire, of rows and of statements, as for a statement of the caller's that writes
// the one row. They have fired when the write returns, except for deferred ones. Each write opens a
// query level for them, as COPY does, because a SELECT that calls a function has none. A BEFORE
// trigger could change or suppress the row, which is the proof of an effect, so a table that has
// one is not written.
//
// A trigger runs with the rights of the role that writes, may raise an error, and may call idem.
// What a caller has read from a cache must then outlive the write: see on_firing(). Where idem
// writes for others, as the table's owner (pg/server/owner), only triggers fire whose code has
// these rights anyway: see untrusted_trigger().
#pragma once

#include "pg/server/postgres.hpp"

namespace idem::pg {

// Raises 55000 if a BEFORE trigger of the table would fire for the command. Called before a write.
void refuse_before_triggers(Relation table, CmdType command);
inline void check_triggers(Relation table, CmdType command) {
    if (table->trigdesc != nullptr) refuse_before_triggers(table, command);
}

// Fires the AFTER triggers. old_row: the version that was updated or deleted; new_row: the one that
// was written. Called after the write, when the row has all its index entries.
void fire_after_triggers(Relation table, CmdType command, ItemPointer old_row,
                         TupleTableSlot* new_row);
inline void fire_triggers(Relation table, CmdType command, ItemPointer old_row,
                          TupleTableSlot* new_row) {
    if (table->trigdesc != nullptr) fire_after_triggers(table, command, old_row, new_row);
}

// Registers a function that is called before triggers fire. It must not raise errors.
void on_firing(void (*prepare)());

// A BEFORE trigger that would fire; NULL if there is none.
const Trigger* before_trigger(Relation table);

// Of a table that a process writes as its owner: the trigger that would run the code of a role with
// the rights of another, and what to do about it, as sentences.
struct UntrustedTrigger {
    const char* detail;
    const char* remedy;
};
std::optional<UntrustedTrigger> untrusted_trigger(Relation table);

}  // namespace idem::pg
