#include "pg/subtransaction.hpp"

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
    }
    PG_END_TRY();
    MemoryContextSwitchTo(context);
    CurrentResourceOwner = owner;
    Assert(GetCurrentTransactionNestLevel() == level);
    return error;
}

}  // namespace idem::pg
