#include "pg/scope_table.hpp"

#include "pg/boundary.hpp"
#include "pg/report.hpp"
#include "pg/scope_ids.hpp"

namespace idem::pg {
namespace {

using namespace scope_row;

constexpr int column_exclude = column_of("request_exclude");

NullableDatum value_in(const ScopeRow& row, int column) {
    const auto i = static_cast<std::size_t>(column);
    return {row.values()[i], row.nulls()[i]};
}

void set_value(ScopeRow& row, int column, NullableDatum value) {
    if (value.isnull) return row.clear(column);
    row.set(column, value.value);
}

// NULL for NULL.
const char* text_of_value(Oid type, NullableDatum value) {
    if (value.isnull) return nullptr;
    Oid output;
    bool is_varlena;
    getTypeOutputInfo(type, &output, &is_varlena);
    return OidOutputFunctionCall(output, value.value);
}

// The list gets a number when it is first used, and has it again when it returns: fingerprints keep
// the number. Changes of scopes are serialised, so that two lists never get the same number.
void number_request_list(ScopeRow& row) {
    if (value_in(row, column_request_lists).isnull)
        row.set_pointer(column_request_lists, construct_empty_array(TEXTOID));
    ArrayType* lists = DatumGetArrayTypeP(value_in(row, column_request_lists).value);
    const TextElements elements = elements_of(lists);
    const std::string_view text = list_text(value_in(row, column_exclude).value);
    bool known = text == "{}";
    for (int i = 0; i < elements.count; ++i) known = known || elements[i] == text;
    if (known) return;
    int next = elements.count + 1;
    row.set(column_request_lists,
            array_set_element(PointerGetDatum(lists), 1, &next, PointerGetDatum(text_of(text)),
                              false, -1, -1, false, TYPALIGN_INT));
}

// The scope's ttl must satisfy the scope's own limits.
void check_ttls(const ScopeRow& row) {
    const auto exceeds_ttl = [&row](int column) {
        const NullableDatum limit = value_in(row, column);
        const NullableDatum ttl = value_in(row, column_of("ttl"));
        return !limit.isnull && duration("ttl", *DatumGetIntervalP(limit.value)) >
                                    duration("ttl", *DatumGetIntervalP(ttl.value));
    };
    if (exceeds_ttl(column_of("min_ttl")))
        report::invalid_argument("min_ttl", "The minimum must not exceed the scope's ttl.",
                                 "Pass a shorter \"min_ttl\", or a longer \"ttl\" as well.");
    if (exceeds_ttl(column_of("answer_ttl")))
        report::invalid_argument("answer_ttl",
                                 "An answer must not be kept for longer than the scope's ttl.",
                                 "Pass a shorter \"answer_ttl\", or a longer \"ttl\" as well.");
}

void set_rules(ScopeRow& row, const ScopeRules& rules) {
    for (std::size_t i = 0; i < settings.size(); ++i)
        if (rules.values[i]) set_value(row, column_of(i), *rules.values[i]);
    if (rules.owner) row.set(column_owner, ObjectIdGetDatum(*rules.owner));
    number_request_list(row);
    check_ttls(row);
}

Relation open_scopes() {
    return open_table(Table::scope, ShareRowExclusiveLock);
}

void announce_change(Relation relation) {
    CacheInvalidateRelcache(relation);
    table_close(relation, NoLock);
    CommandCounterIncrement();
}

void check_changed(TM_Result result) {
    if (result != TM_Ok) elog(ERROR, "unexpected result %d of changing a scope", result);
}

// A table that is older than the library has no column for the newest settings.
TupleTableSlot* slot_of(Relation relation, const ScopeRow& row) {
    const int natts = RelationGetNumberOfAttributes(relation);
    for (int i = natts; i < columns; ++i) {
        const Setting& setting = settings[static_cast<std::size_t>(i - first_setting)];
        if (!same_value(setting.type, value_in(row, i), preset_value(setting)))
            check_columns(natts, columns);
    }
    const auto size = static_cast<std::size_t>(std::min(natts, columns));
    return new_row(relation, row.values().first(size), row.nulls().first(size));
}

// The row of a scope as it is stored.
struct StoredScope {
    ItemPointerData tid;
    ScopeRow row;
};

StoredScope copy_row(TupleTableSlot* slot) {
    StoredScope stored{slot->tts_tid, {}};
    const TupleDesc table = slot->tts_tupleDescriptor;
    for (int i = 0; i < columns; ++i) {
        const auto value = column(slot, i);
        if (!value) continue;
        stored.row.set(i, i < table->natts ? datumCopy(*value, TupleDescAttr(table, i)->attbyval,
                                                       TupleDescAttr(table, i)->attlen)
                                           : *value);
    }
    return stored;
}

template <class Match>
std::optional<StoredScope> find_stored(Match match) {
    std::optional<StoredScope> stored;
    trivial<std::optional<StoredScope>>();
    scan_for(match, [&](TupleTableSlot* slot) { stored = copy_row(slot); });
    return stored;
}

StoredScope read_stored(std::int32_t id) {
    const auto stored = find_stored(WithId{id});
    if (!stored) elog(ERROR, "scope %d is gone although its table is locked", id);
    return *stored;
}

// Closes the table. The row goes past the table's NOT NULL constraints.
void insert_scope_row(Relation relation, const ScopeRow& row) {
    for (std::size_t i = 0; i < settings.size(); ++i)
        Assert(settings[i].preset == nullptr || !value_in(row, column_of(i)).isnull);
    TupleTableSlot* slot = slot_of(relation, row);
    insert_row(relation, slot);
    ExecDropSingleTupleTableSlot(slot);
    announce_change(relation);
}

// ---- Differences --------------------------------------------------------------------------------

// The settings that differ, as a sentence; NULL if none does.
const char* differences(const ScopeRow& stored, const ScopeRow& given) {
    StringInfoData text;
    initStringInfo(&text);
    const auto compare = [&](const char* name, Oid type, int column) {
        const NullableDatum is = value_in(stored, column);
        const NullableDatum would_be = value_in(given, column);
        if (same_value(type, is, would_be)) return;
        const auto shown = [type](NullableDatum value) {
            return value.isnull ? "NULL" : text_of_value(type, value);
        };
        appendStringInfo(&text, "%s\"%s\" is %s, not %s", text.len == 0 ? "" : "; ", name,
                         shown(is), shown(would_be));
    };
    compare("owner", REGROLEOID, column_owner);
    for (std::size_t i = 0; i < settings.size(); ++i)
        compare(settings[i].name, settings[i].type, column_of(i));
    compare("request_lists", TEXTARRAYOID, column_request_lists);
    return text.len == 0 ? nullptr : psprintf("In the existing scope, %s.", text.data);
}

[[noreturn]] void scope_exists(std::string_view name) {
    ereport(ERROR, (errcode(ERRCODE_DUPLICATE_OBJECT),
                    errmsg("scope \"%s\" already exists", report::c_string(name)),
                    errdetail("Scope names are unique in a database."),
                    errhint("Change the existing scope with idem.alter_scope(), or choose another "
                            "name.")));
}

[[noreturn]] void scope_differs(const char* name, const char* differing, const char* hint) {
    ereport(ERROR, (errcode(ERRCODE_DUPLICATE_OBJECT),
                    errmsg("scope \"%s\" already exists with other settings", name),
                    errdetail_internal("%s", differing), errhint("%s", hint)));
}

// A scope's settings are shown to its users only.
void require_equal(std::string_view name, const ScopeRow& stored, const ScopeRow& given) {
    const Oid owner = DatumGetObjectId(value_in(stored, column_owner).value);
    if (!has_privs_of_role(GetUserId(), owner)) scope_exists(name);
    const char* differing = differences(stored, given);
    if (differing != nullptr)
        scope_differs(report::c_string(name), differing,
                      "Pass the settings of the existing scope, which idem.scope_ddl() shows, or "
                      "change them first with idem.alter_scope().");
}

}  // namespace

bool same_value(Oid type, NullableDatum a, NullableDatum b) {
    if (a.isnull || b.isnull) return a.isnull == b.isnull;
    if (type == INTERVALOID)
        return duration("interval", *DatumGetIntervalP(a.value)) ==
               duration("interval", *DatumGetIntervalP(b.value));
    return strcmp(text_of_value(type, a), text_of_value(type, b)) == 0;
}

NullableDatum preset_value(const Setting& setting) {
    if (setting.preset == nullptr) return {Datum{0}, true};
    return {value_of_text(setting, setting.preset), false};
}

// ---- Scopes as SQL ------------------------------------------------------------------------------

const char* scope_definition(std::int32_t id) {
    const StoredScope scope = read_stored(id);
    StringInfoData call;
    initStringInfo(&call);
    appendStringInfo(&call, "SELECT idem.create_scope(%s",
                     quote_literal_cstr(text_of_value(TEXTOID, value_in(scope.row, column_name))));
    ArrayBuildState* unnamed = nullptr;
    for (std::size_t i = 0; i < settings.size(); ++i) {
        const Setting& setting = settings[i];
        const NullableDatum value = value_in(scope.row, column_of(i));
        if (same_value(setting.type, value, preset_value(setting))) continue;
        const char* text = text_of_value(setting.type, value);
        if (i >= named_settings)
            unnamed = accumArrayResult(unnamed,
                                       CStringGetTextDatum(psprintf("%s=%s", setting.name, text)),
                                       false, TEXTOID, CurrentMemoryContext);
        else if (setting.type == BOOLOID)
            appendStringInfo(&call, ", %s => %s", setting.name, *text == 't' ? "true" : "false");
        else
            appendStringInfo(&call, ", %s => %s", setting.name,
                             setting.type == INT4OID ? text : quote_literal_cstr(text));
    }
    if (unnamed != nullptr)
        appendStringInfo(
            &call, ", settings => %s",
            quote_literal_cstr(text_of_value(
                TEXTARRAYOID, {makeArrayResult(unnamed, CurrentMemoryContext), false})));
    appendStringInfo(
        &call, ", owner => %s);",
        quote_literal_cstr(text_of_value(REGROLEOID, value_in(scope.row, column_owner))));
    return call.data;
}

// ---- Changes ------------------------------------------------------------------------------------

void lock_scopes() {
    table_close(open_scopes(), NoLock);
}

bool insert_scope(std::string_view name, const ScopeRules& rules, NameTaken taken) {
    Relation relation = open_scopes();
    ScopeRow row;
    row.set_text(column_name, name);
    set_rules(row, rules);
    if (const auto existing = find_stored(WithName{name})) {
        if (taken == NameTaken::refused) scope_exists(name);
        set_value(row, column_request_lists, value_in(existing->row, column_request_lists));
        require_equal(name, existing->row, row);
        table_close(relation, NoLock);
        return false;
    }
    row.set_int(column_id, next_scope_id());
    insert_scope_row(relation, row);
    return true;
}

void update_scope(std::int32_t id, const ScopeRules& rules) {
    Relation relation = open_scopes();
    StoredScope scope = read_stored(id);
    set_rules(scope.row, rules);
    TupleTableSlot* slot = slot_of(relation, scope.row);
    check_changed(update_row(relation, scope.tid, slot));
    ExecDropSingleTupleTableSlot(slot);
    announce_change(relation);
}

void delete_scope(std::int32_t id) {
    remove_scope(id);
    note_dropped_scope(id);
}

// ---- Scopes of another server -------------------------------------------------------------------

ScopeRow checked_row(HeapTupleHeader scope) {
    ScopeRow row;
    for (int i = 0; i < columns; ++i) {
        NullableDatum value;
        value.value = GetAttributeByNum(scope, static_cast<AttrNumber>(i + 1), &value.isnull);
        if (i >= first_setting)
            value = checked_value(settings[static_cast<std::size_t>(i - first_setting)], value);
        else if (value.isnull)
            report::invalid_argument("identity", "A scope has no id, name, owner or lists.",
                                     "Pass the result of idem.export_identity() unchanged.");
        set_value(row, i, value);
    }
    number_request_list(row);
    check_ttls(row);
    return row;
}

void require_same_rules(std::int32_t id, const ScopeRow& row) {
    const StoredScope stored = read_stored(id);
    const char* differing = differences(stored.row, row);
    if (differing != nullptr)
        scope_differs(text_of_value(TEXTOID, value_in(stored.row, column_name)), differing,
                      "Change the existing scope first with idem.alter_scope(), or the scope in "
                      "the other database, and export the identity again.");
}

void place_scope(const ScopeRow& row) {
    insert_scope_row(open_scopes(), row);
}

void remove_scope(std::int32_t id) {
    Relation relation = open_scopes();
    StoredScope scope = read_stored(id);
    check_changed(compat::delete_row(relation, &scope.tid, compat::Waiting::yes));
    announce_change(relation);
}

}  // namespace idem::pg
