#include "pg/store/triggers.hpp"

#include "pg/server/catalog.hpp"
#include "pg/server/compat.hpp"

extern "C" {
#include "catalog/catalog.h"
#include "optimizer/optimizer.h"
}

namespace idem::pg {
namespace {

using Prepare = void();
constinit Prepare* prepare_to_fire = nullptr;

constexpr int any_event = TRIGGER_TYPE_INSERT | TRIGGER_TYPE_UPDATE | TRIGGER_TYPE_DELETE;

int trigger_event(CmdType command) {
    Assert(command == CMD_INSERT || command == CMD_UPDATE || command == CMD_DELETE);
    if (command == CMD_INSERT) return TRIGGER_TYPE_INSERT;
    return command == CMD_UPDATE ? TRIGGER_TYPE_UPDATE : TRIGGER_TYPE_DELETE;
}

// As the server decides it, by the setting session_replication_role.
bool is_enabled(const Trigger& trigger) {
    const char other = SessionReplicationRole == SESSION_REPLICATION_ROLE_REPLICA
                           ? TRIGGER_FIRES_ON_ORIGIN
                           : TRIGGER_FIRES_ON_REPLICA;
    return trigger.tgenabled != TRIGGER_DISABLED && trigger.tgenabled != other;
}

// The first trigger of one of the events that fires in this session and is like this. It is a copy:
// while the caller reads catalogs, the server may free what the open table has.
template <class IsLike>
const Trigger* find_trigger(Relation table, int events, IsLike is_like) {
    const TriggerDesc* triggers = CopyTriggerDesc(table->trigdesc);
    for (int i = 0; triggers != nullptr && i < triggers->numtriggers; ++i) {
        const Trigger& trigger = triggers->triggers[i];
        if ((trigger.tgtype & events) != 0 && is_enabled(trigger) && is_like(trigger))
            return &trigger;
    }
    return nullptr;
}

bool is_before(const Trigger& trigger) {
    return TRIGGER_FOR_BEFORE(trigger.tgtype);
}

// ---- Whose code a trigger runs ------------------------------------------------------------------

// Its code has the rights of the table's owner anyway.
bool is_trusted(Oid role, Relation table) {
    return role == table->rd_rel->relowner || superuser_arg(role);
}

// Changes rows that refer to the one that is written, and their triggers run as the role that
// writes.
bool is_cascading(const Trigger& trigger) {
    constexpr std::array harmless = {F_RI_FKEY_NOACTION_DEL, F_RI_FKEY_NOACTION_UPD,
                                     F_RI_FKEY_RESTRICT_DEL, F_RI_FKEY_RESTRICT_UPD};
    return RI_FKey_trigger_type(trigger.tgfoid) == RI_TRIGGER_PK &&
           std::ranges::find(harmless, trigger.tgfoid) == harmless.end();
}

// The function is its owner's, who may replace it. SECURITY DEFINER does not help: the owner may
// take it back between two triggers.
bool is_foreign(Oid function, Relation table) {
    HeapTuple tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
    if (!HeapTupleIsValid(tuple)) return true;
    const auto* form = reinterpret_cast<const FormData_pg_proc*>(GETSTRUCT(tuple));
    const bool trusted = is_trusted(form->proowner, table);
    ReleaseSysCache(tuple);
    return !trusted;
}

// A query may call such a function when it is planned, if its arguments are constants.
bool has_foreign_index(Oid relation, Relation table) {
    bool found = false;
    ScanKeyData key;
    ScanKeyInit(&key, Anum_pg_index_indrelid, BTEqualStrategyNumber, F_OIDEQ,
                ObjectIdGetDatum(relation));
    Relation indexes = table_open(IndexRelationId, AccessShareLock);
    SysScanDesc scan = systable_beginscan(indexes, IndexIndrelidIndexId, true, nullptr, 1, &key);
    for (HeapTuple tuple; HeapTupleIsValid(tuple = systable_getnext(scan));)
        each_dependency(DependDependerIndexId, Anum_pg_depend_classid, RelationRelationId,
                        reinterpret_cast<const FormData_pg_index*>(GETSTRUCT(tuple))->indexrelid,
                        [&found, table](const FormData_pg_depend& on) {
                            found = found || (on.refclassid == ProcedureRelationId &&
                                              is_foreign(on.refobjid, table));
                        });
    systable_endscan(scan);
    table_close(indexes, AccessShareLock);
    return found;
}

// A foreign key looks for rows that refer to the one that is written, and for another one of its
// key, as the owner of the table that it reads, whose casts and indexes may call the owner's code,
// as may those of its partitions. That could change the search_path of the triggers behind it.
// Returns the first table that it must not read.
std::optional<Oid> foreign_reference(const Trigger& trigger, Relation table) {
    if (RI_FKey_trigger_type(trigger.tgfoid) != RI_TRIGGER_PK) return std::nullopt;
    const Oid referring = trigger.tgconstrrelid;
    const List* read = get_rel_relkind(referring) == RELKIND_PARTITIONED_TABLE
                           ? find_all_inheritors(referring, NoLock, nullptr)
                           : list_make1_oid(referring);
    for (int i = 0; i < list_length(read); ++i) {
        const Oid relation = list_nth_oid(read, i);
        const auto form = find_form<FormData_pg_class>(RELOID, relation);
        if (!form || !is_trusted(form->relowner, table) || has_foreign_index(relation, table))
            return relation;
    }
    if (has_foreign_index(RelationGetRelid(table), table)) return RelationGetRelid(table);
    return std::nullopt;
}

bool is_added(Oid function, void*) {
    return !IsPinnedObject(ProcedureRelationId, function);
}

bool runs_added_code(Node* node, void* context) {
    if (node == nullptr) return false;
    if (IsA(node, CoerceToDomain) &&
        !IsPinnedObject(TypeRelationId, reinterpret_cast<CoerceToDomain*>(node)->resulttype))
        return true;
    return check_functions_in_node(node, is_added, context) ||
           compat::any_child(node, runs_added_code, context);
}

// The role that has created the trigger chose what its condition calls, and need not own the table.
// Built-in functions that are not immutable may write files or run a query. The catalog notes no
// dependencies for the triggers that partitions inherit.
bool has_foreign_condition(const Trigger& trigger) {
    if (trigger.tgqual == nullptr) return false;
    auto* condition = static_cast<Node*>(stringToNode(trigger.tgqual));
    return contain_mutable_functions(condition) || runs_added_code(condition, nullptr);
}

std::optional<UntrustedTrigger> distrust(const Trigger& trigger, Relation table) {
    if (trigger.tgdeferrable)
        return UntrustedTrigger{
            psprintf("Trigger \"%s\" may be deferred to a time at which its code has the rights of "
                     "another role.",
                     trigger.tgname),
            "Create the trigger, or the constraint that it belongs to, as not deferrable."};
    if (is_cascading(trigger))
        return UntrustedTrigger{
            psprintf("Trigger \"%s\" of a foreign key changes the rows that refer to a record, "
                     "whose own triggers would have the rights of the table's owner.",
                     trigger.tgname),
            "Drop the foreign key, or create it with NO ACTION."};
    if (const auto read = foreign_reference(trigger, table))
        return UntrustedTrigger{
            psprintf("Trigger \"%s\" of a foreign key reads table \"%s\" of another role than "
                     "the table's owner, whose rights the next triggers have, or with an index "
                     "that calls a function of such a role.",
                     trigger.tgname, get_rel_name(*read)),
            "Drop the foreign key or that index."};
    if (has_foreign_condition(trigger))
        return UntrustedTrigger{
            psprintf(
                "The WHEN condition of trigger \"%s\" calls a function that is not built in or "
                "not immutable, and would have the rights of the table's owner.",
                trigger.tgname),
            "Test the condition in the function of the trigger."};
    if (!is_foreign(trigger.tgfoid, table)) return std::nullopt;
    const char* function = get_func_name(trigger.tgfoid);
    return UntrustedTrigger{
        psprintf("Trigger \"%s\" calls function \"%s\" of another role than the table's owner, "
                 "whose rights it would have.",
                 trigger.tgname, function),
        psprintf("Review function \"%s\"; then let the table's owner own it.", function)};
}

// ---- Firing -------------------------------------------------------------------------------------

// Puts the events of the row and the statement into the queue of the current query level.
void queue_events(EState* estate, ResultRelInfo* target, CmdType command, ItemPointer old_row,
                  TupleTableSlot* new_row) {
    TransitionCaptureState* rows = MakeTransitionCaptureState(
        target->ri_TrigDesc, RelationGetRelid(target->ri_RelationDesc), command);
    if (command == CMD_INSERT) {
        ExecARInsertTriggers(estate, target, new_row, NIL, rows);
        ExecASInsertTriggers(estate, target, rows);
    } else if (command == CMD_UPDATE) {
        ExecARUpdateTriggers(estate, target, nullptr, nullptr, old_row, nullptr, new_row, NIL, rows,
                             false);
        ExecASUpdateTriggers(estate, target, rows);
    } else {
        Assert(command == CMD_DELETE);
        ExecARDeleteTriggers(estate, target, old_row, nullptr, rows, false);
        ExecASDeleteTriggers(estate, target, rows);
    }
}

// The process may write as the table's owner: then what it fires is what the owner may do.
void check_trusted(Relation table) {
    if (!InSecurityRestrictedOperation()) return;
    if (const auto untrusted = untrusted_trigger(table))
        ereport(ERROR,
                (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                 errmsg("table \"%s\" is not written as its owner", RelationGetRelationName(table)),
                 errdetail("%s", untrusted->detail), errhint("%s", untrusted->remedy)));
}

}  // namespace

void on_firing(Prepare* prepare) {
    prepare_to_fire = prepare;
}

const Trigger* before_trigger(Relation table) {
    return find_trigger(table, any_event, is_before);
}

std::optional<UntrustedTrigger> untrusted_trigger(Relation table) {
    std::optional<UntrustedTrigger> found;
    (void)find_trigger(table, any_event, [&](const Trigger& trigger) {
        found = distrust(trigger, table);
        return found.has_value();
    });
    return found;
}

void refuse_before_triggers(Relation table, CmdType command) {
    const Trigger* trigger = find_trigger(table, trigger_event(command), is_before);
    if (trigger == nullptr) return;
    ereport(ERROR,
            (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
             errmsg("table \"%s\" has a BEFORE trigger", RelationGetRelationName(table)),
             errdetail("Trigger \"%s\" could change or suppress the row that proves an effect.",
                       trigger->tgname),
             errhint("Make it an AFTER trigger, or disable it: ALTER TABLE %s DISABLE TRIGGER %s.",
                     quote_qualified_identifier(get_namespace_name(RelationGetNamespace(table)),
                                                RelationGetRelationName(table)),
                     quote_identifier(trigger->tgname))));
}

void fire_after_triggers(Relation table, CmdType command, ItemPointer old_row,
                         TupleTableSlot* new_row) {
    check_trusted(table);
    if (prepare_to_fire != nullptr) prepare_to_fire();
    EState* estate = CreateExecutorState();
    ResultRelInfo* target = compat::begin_statement(estate, table);
    AfterTriggerBeginQuery();
    queue_events(estate, target, command, old_row, new_row);
    AfterTriggerEndQuery(estate);
    ExecResetTupleTable(estate->es_tupleTable, false);
    ExecCloseResultRelations(estate);
    FreeExecutorState(estate);
}

}  // namespace idem::pg
