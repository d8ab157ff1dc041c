#include "pg/server/subtransaction.hpp"

namespace idem::pg {

ErrorData* run_in_subtransaction(void (*work)(void*), void* argument, Ending ending) {
    MemoryContext context = CurrentMemoryContext;
    ResourceOwner owner = CurrentResourceOwner;
    ErrorData* volatile error = nullptr;
    [[maybe_unused]] const int level = GetCurrentTransactionNestLevel();

    BeginInternalSubTransaction(nullptr);
    MemoryContextSwitchTo(context);
    PG_TRY();
    {
        work(argument);
        if (ending == Ending::commit)
            ReleaseCurrentSubTransaction();
        else
            RollbackAndReleaseCurrentSubTransaction();
    }
    PG_CATCH();
    {
        MemoryContextSwitchTo(context);
        error = CopyErrorData();
        FlushErrorState();
        RollbackAndReleaseCurrentSubTransaction();
        // If the error was an interrupt, such as a timeout, others that came with it are still to
        // be processed, but no longer announced. A session that waits for this one to close the
        // files of a dropped database would wait for as long as nothing else interrupts this
        // backend.
        InterruptPending = true;
    }
    PG_END_TRY();
    MemoryContextSwitchTo(context);
    CurrentResourceOwner = owner;
    Assert(GetCurrentTransactionNestLevel() == level);
    return error;
}

void lock_for_transaction(Oid relation, LOCKMODE mode) {
    (void)as_transaction_owner([relation, mode] {
        LockRelationOid(relation, mode);
        return true;
    });
}

}  // namespace idem::pg
